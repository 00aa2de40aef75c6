package pgtx

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
)

// Grace is how long the server may take to obey a request to cancel, and how long a statement may
// run after its caller has left. After it the connection is closed.
const Grace = 2 * time.Second

// CancelDelay is how long a statement may continue after its context is done, until the server is
// asked to cancel it.
type CancelDelay struct {
	Deadline time.Duration // if the context's deadline has passed
	Cancel   time.Duration // if the context was canceled
}

var (
	// CancelSoon is for statements that wait for locks. A lock_timeout that was derived from the
	// context's deadline fires at about the same time and needs no second connection, so that a
	// deadline leaves it some time.
	CancelSoon = CancelDelay{Deadline: 50 * time.Millisecond, Cancel: 5 * time.Millisecond}

	// LetFinish is for statements that wait for nothing.
	LetFinish = CancelDelay{Deadline: Grace, Cancel: Grace}
)

func (d CancelDelay) of(ctx context.Context) time.Duration {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return d.Deadline
	}
	return d.Cancel
}

// Run runs op, which sends a statement on conn, and returns its error. When ctx is done first,
// Run asks the server to cancel the statement, and the connection and its transaction survive.
//
// Run returns after op and after the last request to cancel, so that no request can hit the
// connection's next statement. (The server signals its process before it answers a request, and
// an idle process ignores the signal.) If the server does not react within Grace, the connection
// is closed. If conn is nil, op runs with ctx itself.
//
// op gets a context that is never done, so that pgx watches no context for each statement. The
// rare connection that must be closed is closed by a deadline on its socket.
func Run(ctx context.Context, conn *pgx.Conn, delay CancelDelay, op func(ctx context.Context) error) error {
	return runAfter(ctx, conn, nil, delay, op)
}

// runAfter is Run for an op that must not be canceled until ready is closed; a nil ready allows it
// at once. When ctx is done, the request to cancel waits for ready, and if ready is not closed
// within Grace, the connection is closed.
func runAfter(ctx context.Context, conn *pgx.Conn, ready <-chan struct{}, delay CancelDelay, op func(ctx context.Context) error) error {
	if conn == nil {
		return op(ctx)
	}
	detached, socket := context.WithoutCancel(ctx), conn.PgConn().Conn()
	canceled, err := watch(ctx, func(finished <-chan struct{}) {
		if ready == nil || within(Grace, ready, finished) {
			cancelStatement(detached, func() *pgx.Conn { return conn }, delay.of(ctx), finished)
		}
		if !within(0, finished, nil) {
			// Reads and writes fail, and pgx closes the connection.
			_ = socket.SetDeadline(time.Unix(1, 0))
		}
	}, func() error { return op(detached) })
	if canceled { // the statement may have finished just before the deadline was set
		_ = socket.SetDeadline(time.Time{})
	}
	return err
}

// RunOn is Run for an op that chooses its connection itself. When ctx is done, conn is called,
// possibly while op runs, and the server is asked to cancel the statement of the connection that it
// returns. The context of op is canceled if conn returns nil, or if the requests have no effect
// within Grace.
func RunOn(ctx context.Context, conn func() *pgx.Conn, delay CancelDelay, op func(ctx context.Context) error) error {
	detached, cut := context.WithCancel(context.WithoutCancel(ctx))
	defer cut()
	_, err := watch(ctx, func(finished <-chan struct{}) {
		cancelStatement(detached, conn, delay.of(ctx), finished)
		cut() // no effect if op has returned
	}, func() error { return op(detached) })
	return err
}

// Uncanceled runs op, which sends statements in tx that wait for nothing, and lets them finish when
// ctx is done, because to cancel them would abort the transaction. They are canceled only after
// Grace. A tx without a Conn method, which would obey ctx by itself, is protected too.
func Uncanceled(ctx context.Context, tx any, op func(ctx context.Context) error) error {
	if conn := Conn(tx); conn != nil {
		return Run(ctx, conn, LetFinish, op)
	}
	return RunOn(ctx, func() *pgx.Conn { return nil }, LetFinish, op)
}

// CleanUp runs op with a context that is not done when ctx is, and that ends after Grace.
func CleanUp(ctx context.Context, op func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), Grace)
	defer cancel()
	return op(ctx)
}

// watch runs op and, when ctx is done meanwhile, runs cancel in parallel, with a channel that is
// closed when op has returned. It waits for both, and reports whether cancel has run.
func watch(ctx context.Context, cancel func(finished <-chan struct{}), op func() error) (canceled bool, err error) {
	finished, quiet := make(chan struct{}), make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(quiet)
		cancel(finished)
	})
	err = op()
	close(finished)
	if stop() {
		return false, err
	}
	<-quiet
	return true, err
}

// cancelStatement asks the server to cancel the statement that conn is busy with, after delay and
// for at most Grace. The request is repeated, because a server ignores one that arrives just before
// its statement.
func cancelStatement(ctx context.Context, conn func() *pgx.Conn, delay time.Duration, finished <-chan struct{}) {
	const repeatEvery = 100 * time.Millisecond
	if within(delay, finished, nil) {
		return
	}
	busy := conn()
	if busy == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, Grace)
	defer cancel()
	for ctx.Err() == nil {
		// A request that failed is repeated like one that missed.
		_ = busy.PgConn().CancelRequest(ctx)
		if within(repeatEvery, finished, nil) {
			return
		}
	}
}

// within reports whether a or b is closed before d has passed.
func within(d time.Duration, a, b <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	// No race: both channels lead to the same answer, and a late timer costs only one more check.
	select {
	case <-a:
		return true
	case <-b:
		return true
	case <-timer.C:
		return false
	}
}
