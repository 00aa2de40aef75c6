package advisory

import (
	"context"
	"errors"
	"os"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/internal/errs"
)

// runWatch ends the lock when its connection ends. It reads from the connection all the time, so
// that a closed connection is noticed at once, and probes the server four times in keepAlive. No
// statement waits in the server: a statement whose client is gone would keep the lock.
func (s *Session) runWatch(ctx context.Context, keepAlive time.Duration) {
	defer close(s.watchDone)
	for ctx.Err() == nil {
		err := listen(ctx, s.conn, keepAlive/4)
		if err == nil {
			err = probe(s.conn, s.pid, keepAlive/2)
		}
		if err != nil && (ctx.Err() == nil || s.conn.IsClosed()) {
			s.cancel(s.lost(err)) // no effect if the lock has ended
			s.close(context.WithoutCancel(ctx))
			return
		}
	}
}

// listen reads for d or until ctx is done. It returns nil unless the connection has failed. It
// ends the read by a deadline on the socket. pgx would treat the end of a context as its user has
// configured, with a request to cancel and seconds of waiting.
func listen(ctx context.Context, conn *pgx.Conn, d time.Duration) error {
	socket, quiet := conn.PgConn().Conn(), make(chan struct{})
	_ = socket.SetReadDeadline(time.Now().Add(d))
	stop := context.AfterFunc(ctx, func() {
		defer close(quiet)
		_ = socket.SetReadDeadline(time.Unix(1, 0))
	})
	defer func() {
		if !stop() {
			<-quiet // otherwise the deadline could hit the next statement
		}
		_ = socket.SetReadDeadline(time.Time{})
	}()
	for {
		err := conn.PgConn().WaitForNotification(context.Background())
		switch {
		case conn.IsClosed():
			return errs.Errorf("the connection was closed: %w", err)
		case errors.Is(err, os.ErrDeadlineExceeded):
			return nil
		case err != nil:
			return err
		}
	}
}

// probe returns an error unless process pid answers on the connection within timeout. It works
// below pgx, whose tracers would report it four times a second.
func probe(conn *pgx.Conn, pid uint32, timeout time.Duration) error {
	socket := conn.PgConn().Conn()
	_ = socket.SetDeadline(time.Now().Add(timeout))
	results, err := conn.PgConn().Exec(context.Background(), "SELECT pg_backend_pid()").ReadAll()
	_ = socket.SetDeadline(time.Time{})
	var found uint64
	if err == nil && len(results) == 1 && len(results[0].Rows) == 1 {
		found, err = strconv.ParseUint(string(results[0].Rows[0][0]), 10, 32)
	}
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return errs.Errorf("the server did not answer within %v: %w", timeout, err)
	case err != nil:
		return err
	case uint32(found) != pid:
		return errs.Errorf("%w: process %d answered instead of %d", ErrPooled, found, pid)
	}
	return nil
}
