package advisory

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// KeepAlive is what Acquire sets on a session's connection.
func KeepAlive(ctx context.Context, conn *pgx.Conn) error { return keepAlive(ctx, conn) }

// Forget makes the server's session give up the lock behind s's back.
func Forget(ctx context.Context, s *Session) error {
	s.stop()
	<-s.stopped
	_, err := s.conn.Exec(ctx, "SELECT pg_advisory_unlock_all()")
	return err
}

// Lines returns how many lines there are in this process.
func Lines() int {
	n := 0
	for _, l := range []*lines{&doLines, &sessionLines} {
		l.mu.Lock()
		n += len(l.open)
		l.mu.Unlock()
	}
	return n
}
