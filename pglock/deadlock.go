package pglock

import (
	"context"
	"time"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/timing"
	"github.com/pglock/pglock-go/leasetable"
)

// cycleError is the cause of a context that endAtDeadlock has ended.
type cycleError struct{ cycle string }

func (e *cycleError) Error() string { return errs.OneLine("pglock: deadlock: " + e.cycle) }
func (e *cycleError) Unwrap() error { return ErrDeadlock }

// heldUnder returns the tokens of the held leases that ctx carries, of locks in the client's tables.
func (c *Client) heldUnder(ctx context.Context) (tokens []fencing.Token) {
	for _, l := range carriedLeases(ctx) {
		if l.client == c || l.client.store.Database() == c.store.Database() {
			tokens = append(tokens, l.Token())
		}
	}
	return tokens
}

// endAtDeadlock returns a context that ends with ctx, and when the wait closes a cycle of calls that wait for
// each other. The caller must call end before it returns a grant: the server would take it for a call that
// waits, and another one that waits for what it holds would fail for nothing.
func (w *waiter) endAtDeadlock(ctx context.Context, held []fencing.Token) (waiting context.Context, end func()) {
	waiting, cancel := context.WithCancelCause(ctx)
	ended := make(chan struct{})
	w.client.calls.Go(func() {
		defer close(ended)
		if cycle := w.watchCycles(waiting, held); cycle != "" {
			cancel(&cycleError{cycle})
		}
	})
	return waiting, func() {
		cancel(nil)
		select {
		case <-ended:
		case <-time.After(timing.CancelGrace):
		}
	}
}

// watchCycles tells the server from time to time what the call holds while it waits, until ctx ends or the server
// finds a cycle. Most waits end before the first time. No statement is canceled, because it could then arrive
// after the end of the wait.
func (w *waiter) watchCycles(ctx context.Context, held []fencing.Token) (cycle string) {
	n := leasetable.NestedWait{Holds: held}
	tell := func(op func(context.Context) error) {
		bounded, cancel := context.WithTimeout(w.client.cleanup, timing.StatementBound)
		defer cancel()
		if err := op(bounded); err != nil {
			w.client.cfg.logger.Debug("pglock: deadlocks are looked for again later", "name", w.name, "error", err)
		}
	}
	for pause := timing.DeadlockAfter; cycle == ""; pause = timing.DeadlockEvery {
		select { // more than one case may be ready: another look is harmless
		case <-time.After(pause):
		case <-w.client.closing:
		case <-ctx.Done():
		}
		if ctx.Err() != nil || w.client.hasClosed() {
			break
		}
		n.Request = w.request("")
		n.Ticket = w.ticketOr(0)
		if w.entry.IsHead() {
			n.Ticket = w.ticketOr(max(w.entry.Ticket(), 0))
		}
		tell(func(ctx context.Context) (err error) {
			cycle, err = w.client.store.NestedWait(ctx, &n)
			return err
		})
	}
	if n.Number != 0 && cycle == "" {
		tell(func(ctx context.Context) error { return w.client.store.EndNestedWait(ctx, n.Number) })
	}
	return cycle
}
