package advisory

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
)

// runWatch ends the lock when its connection does. It reads from the connection all the time, so
// that a connection that is closed is noticed at once, and asks the server for a sign of life
// four times in notice. Nothing sleeps in the server: there, a statement that nobody
// waits for any more would keep the lock.
func (s *Session) runWatch(ctx context.Context, notice time.Duration) {
	defer close(s.stopped)
	for ctx.Err() == nil {
		err := listen(ctx, s.conn, notice/4)
		if err == nil {
			err = alive(s.conn, s.pid, notice/2)
		}
		if err != nil && (ctx.Err() == nil || s.conn.IsClosed()) {
			s.lose(context.WithoutCancel(ctx), err)
			return
		}
	}
}

// listen waits for d or until ctx ends, and returns nil unless the connection failed meanwhile. The end is a deadline
// on the socket, as a context's end means to pgx what its user has configured: a request to cancel, and seconds more.
func listen(ctx context.Context, conn *pgx.Conn, d time.Duration) error {
	socket, quiet := conn.PgConn().Conn(), make(chan struct{})
	_ = socket.SetReadDeadline(time.Now().Add(d))
	stop := context.AfterFunc(ctx, func() {
		defer close(quiet)
		_ = socket.SetReadDeadline(time.Unix(1, 0))
	})
	defer func() {
		if !stop() {
			<-quiet // or it would hit the next statement
		}
		_ = socket.SetReadDeadline(time.Time{})
	}()
	for {
		err := conn.PgConn().WaitForNotification(context.Background())
		switch {
		case conn.IsClosed():
			return fmt.Errorf("the connection was closed: %w", err)
		case errors.Is(err, os.ErrDeadlineExceeded):
			return nil
		case err != nil:
			return err
		}
	}
}

// alive asks which process serves the connection, and returns an error unless it is pid that
// answers, within bound. It asks below pgx, whose tracers would tell of it four times a second.
func alive(conn *pgx.Conn, pid uint32, bound time.Duration) error {
	socket := conn.PgConn().Conn()
	_ = socket.SetDeadline(time.Now().Add(bound))
	results, err := conn.PgConn().Exec(context.Background(), "SELECT pg_backend_pid()").ReadAll()
	_ = socket.SetDeadline(time.Time{})
	var found uint64
	if err == nil && len(results) == 1 && len(results[0].Rows) == 1 {
		found, err = strconv.ParseUint(string(results[0].Rows[0][0]), 10, 32)
	}
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("the server did not answer within %v: %w", bound, err)
	case err != nil:
		return err
	case uint32(found) != pid:
		return fmt.Errorf("%w: process %d answers instead of %d", ErrPooled, found, pid)
	}
	return nil
}

// backend returns the number of the process that serves the connection at the moment.
func backend(ctx context.Context, conn *pgx.Conn) (pid uint32, err error) {
	err = conn.QueryRow(ctx, "SELECT pg_backend_pid()").Scan(&pid)
	return pid, err
}
