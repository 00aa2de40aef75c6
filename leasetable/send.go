package leasetable

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock/pglock-go/internal/backoff"
	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/timing"
)

// statement is a statement of the protocol with its arguments and its row handler.
type statement struct {
	sql  string
	args []any
	row  func(pgx.Rows) error // scans one row; may be nil
}

// send sends a statement that is not a renewal. It returns the time just before the statement was
// sent: the server's promises count from there.
func (s *Store) send(ctx context.Context, st statement) (time.Time, error) {
	ctx, cancel := s.withLife(ctx)
	defer cancel()
	return s.sendWithin(ctx, st)
}

// sendWithin is send for a ctx that is derived from the client's life.
func (s *Store) sendWithin(ctx context.Context, st statement) (time.Time, error) {
	// If a slot is free when ctx ends, the statement may be sent, and fails at once.
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	case <-ctx.Done():
		return time.Time{}, unsentError{context.Cause(ctx)}
	}
	return s.roundTrip(ctx, st, false, nil)
}

// unsentError is the end of a context before its statement was sent: see MaybeApplied.
type unsentError struct{ error }

// SafeToRetry is what pgconn.SafeToRetry asks for.
func (unsentError) SafeToRetry() bool { return true }
func (e unsentError) Unwrap() error   { return e.error }

// withLife returns a context that ends with ctx or with the client's life.
func (s *Store) withLife(ctx context.Context) (_ context.Context, cancel func()) {
	ctx, end := context.WithCancelCause(ctx)
	stop := context.AfterFunc(s.life, func() { end(errs.ErrClosed) })
	return ctx, func() { stop(); end(nil) }
}

// roundTrip sends st and reads the answer. It calls watch, if not nil, just before it sends, and
// the result of watch after the answer.
func (s *Store) roundTrip(
	ctx context.Context, st statement, forRenewal bool, watch func(sent time.Time) (stop func() bool),
) (sent time.Time, err error) {
	conn, err := s.pool.acquire(ctx, forRenewal)
	if err != nil {
		return sent, s.orClosed(err)
	}
	frame, _ := conn.PgConn().CustomData()[frameKey].([]string)
	if forRenewal && frame == nil && conn.Config().DefaultQueryExecMode == pgx.QueryExecModeCacheStatement {
		// A new connection has no time for a round trip that prepares the statement.
		st.args = append([]any{pgx.QueryExecModeExec}, st.args...)
	}
	sent = time.Now()
	if watch != nil {
		defer watch(sent)()
	}
	if frame != nil {
		err = st.sendInTransaction(ctx, conn.Conn, frame)
	} else {
		err = st.sendAlone(ctx, conn.Conn)
	}
	err = confirmed(conn.PgConn(), err)
	s.pool.release(conn)
	if errors.Is(ctx.Err(), context.Canceled) { // its caller gave up: it takes longer than this
		s.latency.note(time.Since(sent))
	}
	switch {
	case err == nil && forRenewal:
		s.renewPace.note(time.Since(sent))
	case err == nil:
		s.latency.note(time.Since(sent))
	case !ConnectionFailed(err), errors.Is(err, errUnconfirmed):
	case pgconn.Timeout(err):
		// The server may be slow, or the network may have dropped this connection. Then it has
		// likely dropped other idle ones, and each of them would cost a time-out.
		s.pool.suspect(sent)
	default:
		// The other connections have likely met the same restart or failover.
		s.pool.reset()
	}
	return sent, s.orClosed(err)
}

// latency estimates how long statements take lately. It tends to the slow ones, not to the mean.
type latency struct{ d atomic.Int64 }

func (p *latency) note(took time.Duration) { p.d.Store(max(int64(took), p.d.Load()*3/4)) }
func (p *latency) get() time.Duration      { return time.Duration(p.d.Load()) }

// orClosed adds errs.ErrClosed to an error that came with the end of the client's life.
func (s *Store) orClosed(err error) error {
	if err != nil && s.life.Err() != nil {
		return errs.Errorf("%w: %w", errs.ErrClosed, err)
	}
	return err
}

func (st statement) sendAlone(ctx context.Context, conn *pgx.Conn) error {
	rows, _ := conn.Query(ctx, st.sql, st.args...) // read returns its error
	return st.read(rows)
}

// sendInTransaction is for sessions whose default isolation is stricter, where takeovers would fail
// to serialize instead of waiting for each other, or whose planner may not use what the statements
// need: see readServerInfo. One READ COMMITTED statement is enough. All of it is sent at once: a
// client that paused before its COMMIT would block the row while it sleeps.
func (st statement) sendInTransaction(ctx context.Context, conn *pgx.Conn, frame []string) error {
	batch := &pgx.Batch{}
	for _, before := range frame {
		batch.Queue(before)
	}
	batch.Queue(st.sql, st.args...).Query(st.read)
	batch.Queue("COMMIT")
	return conn.SendBatch(ctx, batch).Close()
}

func (st statement) read(rows pgx.Rows) error {
	defer rows.Close()
	for rows.Next() {
		if st.row == nil {
			continue
		}
		if err := st.row(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// sendTwice sends a statement that is safe to repeat, at most twice.
func (s *Store) sendTwice(ctx context.Context, st statement) error {
	return s.twice(ctx, func(ctx context.Context) error {
		_, err := s.send(ctx, st)
		return err
	})
}

// Read sends a statement that changes nothing, at most twice, and scans its rows into *into, which is
// empty at the beginning of each attempt.
func Read[T any](ctx context.Context, s Reader, into *T, scan func(*T, pgx.Rows) error, sql string, args ...any) error {
	return s.Read(ctx, sql, args, func() (row func(pgx.Rows) error) {
		var none T // an attempt may fail half-way
		*into = none
		return func(r pgx.Rows) error { return scan(into, r) }
	})
}

// Reader reads the tables, as the function Read does: for each attempt it asks for a function of a row.
type Reader interface {
	Read(ctx context.Context, sql string, args []any, begin func() (row func(pgx.Rows) error)) error
}

// Read is Reader's.
func (s *Store) Read(ctx context.Context, sql string, args []any, begin func() (row func(pgx.Rows) error)) error {
	return s.twice(ctx, func(ctx context.Context) error {
		_, err := s.send(ctx, statement{sql, args, begin()})
		return err
	})
}

// twice makes at most two attempts: the first one may meet a connection that died long ago.
func (s *Store) twice(ctx context.Context, attempt func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, timing.StatementBound)
	defer cancel()
	return backoff.Retry(ctx, backoff.Policy{Transient: Transient, Tries: 2}, attempt)
}
