// Package await runs statements whose context may end, without losing the transaction that
// they are part of.
package await

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
)

// Grace is how long a server may take to obey a cancellation, and how long a statement may
// take that nobody waits for any more. Then the connection is cut.
const Grace = 2 * time.Second

// Patience is how long a statement may go on after its context has ended before it is cancelled.
type Patience struct {
	Deadline time.Duration // where the context's deadline has passed
	Cancel   time.Duration // where it was cancelled
}

var (
	// WhileBlocked: the lock_timeout that was made from the deadline fires at about the same
	// time and needs no second connection.
	WhileBlocked = Patience{Deadline: 50 * time.Millisecond, Cancel: 5 * time.Millisecond}

	// UntilAnswered is for statements that wait for nobody: let them end.
	UntilAnswered = Patience{Deadline: Grace, Cancel: Grace}
)

// after returns how long it is once ctx has ended.
func (p Patience) after(ctx context.Context) time.Duration {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return p.Deadline
	}
	return p.Cancel
}

// Run runs op, a statement on conn, and lets it end by itself: pgx closes a connection
// whose context ends in the middle of a statement, and the caller's transaction with
// it. When ctx ends first, the server is asked to cancel the statement instead.
//
// It returns when op has, and when a request to cancel has been dealt with, so that it
// can't hit the connection's next statement (the server signals its process before it
// answers, and a process that is idle ignores it). A server that does not react within
// Grace costs the connection after all. Without conn, op runs under ctx itself.
//
// op's context never ends: a force that is needed once in a while costs a deadline on the socket
// then, rather than every statement several watches of a context.
func Run(ctx context.Context, conn *pgx.Conn, p Patience, op func(ctx context.Context) error) error {
	if conn == nil {
		return op(ctx)
	}
	detached, socket := context.WithoutCancel(ctx), conn.PgConn().Conn()
	ended, err := watched(ctx, func(finished <-chan struct{}) {
		interrupt(detached, func() *pgx.Conn { return conn }, p.after(ctx), finished)
		if !within(0, finished) {
			_ = socket.SetDeadline(time.Unix(1, 0)) // what waits for the server fails, and pgx closes the connection
		}
	}, func() error { return op(detached) })
	if ended { // the statement may have been faster than the force
		_ = socket.SetDeadline(time.Time{})
	}
	return err
}

// RunOn is Run where op itself finds out which connection it uses. conn is called when ctx
// ends; it may run beside op. If it returns nil, op's context ends then.
func RunOn(ctx context.Context, conn func() *pgx.Conn, p Patience, op func(ctx context.Context) error) error {
	detached, cut := context.WithCancel(context.WithoutCancel(ctx))
	defer cut()
	_, err := watched(ctx, func(finished <-chan struct{}) {
		interrupt(detached, conn, p.after(ctx), finished)
		cut() // does nothing to a statement that has finished
	}, func() error { return op(detached) })
	return err
}

// watched runs op, and end beside it when ctx ends meanwhile, with a channel that is closed
// when op has returned. It returns when both have, and whether ctx has ended.
func watched(ctx context.Context, end func(finished <-chan struct{}), op func() error) (ended bool, err error) {
	finished, quiet := make(chan struct{}), make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(quiet)
		end(finished)
	})
	err = op()
	close(finished)
	if stop() {
		return false, err
	}
	<-quiet
	return true, err
}

// interrupt asks for the end of the statement that conn is busy with, d from now, and until Grace
// is over. A server that gets the request just before the statement ignores it, so it is repeated.
func interrupt(ctx context.Context, conn func() *pgx.Conn, d time.Duration, finished <-chan struct{}) {
	const again = 100 * time.Millisecond
	if within(d, finished) {
		return
	}
	busy := conn()
	if busy == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, Grace)
	defer cancel()
	for ctx.Err() == nil {
		_ = busy.PgConn().CancelRequest(ctx) // whether it helps is seen below
		if within(again, finished) {
			return
		}
	}
}

// within reports whether done is closed before d has passed.
func within(d time.Duration, done <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		return false
	}
}

// Ended returns why ctx ended: its error, with its cause where that says more.
func Ended(ctx context.Context) error {
	if cause := context.Cause(ctx); !errors.Is(cause, ctx.Err()) {
		return errors.Join(ctx.Err(), cause)
	}
	return context.Cause(ctx)
}

// CleanUp runs op apart from ctx, which may have ended, for a bounded time.
func CleanUp(ctx context.Context, op func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), Grace)
	defer cancel()
	return op(ctx)
}
