package pglock

import (
	"context"
	"time"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/timing"
	"github.com/pglock/pglock-go/leasetable"
	"github.com/pglock/pglock-go/pglock/internal/backend"
	"github.com/pglock/pglock-go/pglock/internal/waitlist"
)

// cycleError is the cause of a context that endAtDeadlock has ended.
type cycleError struct{ cycle string }

func (e *cycleError) Error() string { return errs.OneLine("pglock: deadlock: " + e.cycle) }
func (e *cycleError) Unwrap() error { return ErrDeadlock }

// heldUnder returns the tokens of the held leases that ctx carries, of locks in the client's tables, and those of
// grants that the processes around this one hold.
func (c *Client) heldUnder(ctx context.Context) (tokens []fencing.Token) {
	for _, l := range carriedLeases(ctx) {
		if l.client == c || l.client.store.Database() == c.store.Database() {
			tokens = append(tokens, l.Token())
		}
	}
	return append(tokens, backend.Held(ctx)...)
}

// endAtDeadlock returns a context that ends with ctx, and when the wait closes a cycle of calls that wait for
// each other. The caller must call end before it returns a grant: the server would take it for a call that
// waits, and another one that waits for what it holds would fail for nothing.
func (a *acquisition) endAtDeadlock(ctx context.Context, e *waitlist.Entry) (waiting context.Context, end func()) {
	waiting, cancel := context.WithCancelCause(ctx)
	ended := make(chan struct{})
	a.client.calls.Go(func() {
		defer close(ended)
		if cycle := a.watchCycles(waiting, e); cycle != "" {
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
func (a *acquisition) watchCycles(ctx context.Context, e *waitlist.Entry) (cycle string) {
	c := a.client
	n := leasetable.NestedWait{Request: a.request("")}
	for pause := timing.DeadlockAfter; cycle == ""; pause = timing.DeadlockEvery {
		select { // more than one case may be ready: another look is harmless
		case <-time.After(pause):
		case <-c.closing:
		case <-ctx.Done():
		}
		if ctx.Err() != nil || c.hasClosed() {
			break
		}
		c.looking <- struct{}{} // one at a time, so that slow looks don't keep other statements waiting
		if ctx.Err() == nil {
			n.Holds, n.Ticket = c.heldUnder(ctx), leasetable.NoTicket
			if e.IsHead() {
				n.Ticket = a.ticketOr(max(e.Ticket(), 0))
			}
			c.tellOfWait(func(ctx context.Context) (err error) {
				cycle, err = c.store.NestedWait(ctx, &n)
				return err
			})
		}
		<-c.looking
	}
	if n.Number != 0 && cycle == "" {
		c.tellOfWait(func(ctx context.Context) error { return c.store.EndNestedWait(ctx, n.Number) })
	}
	return cycle
}

// tellOfWait sends a statement about a nested wait. What fails is tried again by the next look.
func (c *Client) tellOfWait(send func(ctx context.Context) error) {
	ctx, cancel := context.WithTimeout(c.cleanup, timing.StatementBound)
	defer cancel()
	if err := send(ctx); err != nil && ctx.Err() == nil && !leasetable.Transient(err) && !leasetable.RowLocked(err) {
		c.lookFailed.Do(func() { c.cfg.logger.Warn("pglock: deadlocks are not found", "error", err) })
	}
}
