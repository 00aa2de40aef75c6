package link

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
	"github.com/pglock/pglock-go/leasetable"
)

// Send sends a statement as it says. The first of two attempts may meet a connection that died long
// ago.
func (l *Link) Send(ctx context.Context, st leasetable.Statement) (sent time.Time, err error) {
	ctx, cancel := l.withLife(ctx)
	defer cancel()
	if st.Tries < 2 {
		return l.attempt(ctx, st)
	}
	ctx, end := context.WithTimeout(ctx, timing.StatementBound)
	defer end()
	err = backoff.Retry(ctx, backoff.Policy{Transient: Transient, Tries: st.Tries}, func(ctx context.Context) (err error) {
		sent, err = l.attempt(ctx, st)
		return err
	})
	return sent, err
}

// UnsentError is why a statement was not sent: see MaybeApplied.
type UnsentError struct{ Cause error }

func (e UnsentError) Error() string { return e.Cause.Error() }
func (e UnsentError) Unwrap() error { return e.Cause }

// SafeToRetry is what pgconn.SafeToRetry asks for.
func (UnsentError) SafeToRetry() bool { return true }

// withLife returns a context that ends with ctx or with the client's life.
func (l *Link) withLife(ctx context.Context) (_ context.Context, cancel func()) {
	ctx, end := context.WithCancelCause(ctx)
	stop := context.AfterFunc(l.life, func() { end(errs.ErrClosed) })
	return ctx, func() { stop(); end(nil) }
}

// roundTrip sends a statement once.
func (l *Link) roundTrip(ctx context.Context, st leasetable.Statement) (sent time.Time, err error) {
	if !st.Reserved {
		// If a slot is free when ctx ends, the statement may be sent, and fails at once.
		select {
		case l.slots <- struct{}{}:
			defer func() { <-l.slots }()
		case <-ctx.Done():
			return time.Time{}, UnsentError{context.Cause(ctx)}
		}
	}
	conn, err := l.pool.acquire(ctx, st.Reserved)
	if err != nil {
		return sent, l.orClosed(err)
	}
	// It was found out when the connection was opened: see readServerInfo.
	frame, _ := conn.PgConn().CustomData()[frameKey].([]string)
	if st.Reserved && frame == nil && conn.Config().DefaultQueryExecMode == pgx.QueryExecModeCacheStatement {
		// A new connection has no time for a round trip that prepares the statement.
		st.Args = append([]any{pgx.QueryExecModeExec}, st.Args...)
	}
	sent = time.Now()
	if st.Watch != nil {
		defer st.Watch(sent)()
	}
	if frame != nil {
		err = sendInTransaction(ctx, conn.Conn, frame, st)
	} else {
		rows, _ := conn.Query(ctx, st.SQL, st.Args...) // Read returns its error
		err = st.Read(rows)
	}
	err = confirmed(conn.PgConn(), err)
	l.pool.release(conn)
	l.learn(ctx, st, sent, err)
	return sent, l.orClosed(err)
}

// learn draws conclusions from an answer: how long statements take, and which connections may be dead.
func (l *Link) learn(ctx context.Context, st leasetable.Statement, sent time.Time, err error) {
	if errors.Is(ctx.Err(), context.Canceled) { // its caller gave up: it takes longer than this
		l.latency.note(time.Since(sent))
	}
	switch {
	case err == nil && st.Reserved:
		l.renewPace.note(time.Since(sent))
	case err == nil:
		l.latency.note(time.Since(sent))
	case !ConnectionFailed(err), errors.Is(err, errUnconfirmed):
	case pgconn.Timeout(err):
		// The server may be slow, or the network may have dropped this connection. Then it has
		// likely dropped other idle ones, and each of them would cost a time-out.
		l.pool.suspect(sent)
	default:
		// The other connections have likely met the same restart or failover.
		l.pool.reset()
	}
}

// latency estimates how long statements take lately. It tends to the slow ones, not to the mean.
type latency struct{ d atomic.Int64 }

func (p *latency) note(took time.Duration) { p.d.Store(max(int64(took), p.d.Load()*3/4)) }
func (p *latency) get() time.Duration      { return time.Duration(p.d.Load()) }

// orClosed adds errs.ErrClosed to an error that came with the end of the client's life.
func (l *Link) orClosed(err error) error {
	if err != nil && l.life.Err() != nil {
		return errs.Errorf("%w: %w", errs.ErrClosed, err)
	}
	return err
}

// sendInTransaction is for sessions whose default isolation is stricter, where statements would fail
// to serialize if a row has changed since their snapshot, or whose planner may not use what the
// statements need: see readServerInfo. One READ COMMITTED statement is enough. All of it is sent at
// once: a client that paused before its COMMIT would block the row while it sleeps.
func sendInTransaction(ctx context.Context, conn *pgx.Conn, frame []string, st leasetable.Statement) error {
	batch := &pgx.Batch{}
	for _, before := range frame {
		batch.Queue(before)
	}
	batch.Queue(st.SQL, st.Args...).Query(st.Read)
	batch.Queue("COMMIT")
	return conn.SendBatch(ctx, batch).Close()
}
