package pglock

import (
	"context"
	"time"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/timing"
	"github.com/pglock/pglock-go/leasetable"
	"github.com/pglock/pglock-go/pglock/internal/backend"
	"github.com/pglock/pglock-go/pglock/internal/link"
	"github.com/pglock/pglock-go/pglock/internal/waitlist"
)

// cycleError is the cause of a context that endAtDeadlock has ended.
type cycleError struct{ cycle string }

func (e *cycleError) Error() string { return errs.OneLine("pglock: deadlock: " + e.cycle) }
func (e *cycleError) Unwrap() error { return ErrDeadlock }

// heldUnder returns the tokens and holders of the held leases that ctx carries, of locks in the
// client's tables, and those of grants that the processes around this one hold.
func (c *Client) heldUnder(ctx context.Context) (tokens []fencing.Token, holders []string) {
	for _, l := range carriedLeases(ctx) {
		if l.client == c || l.client.store.Database() == c.store.Database() {
			tokens, holders = append(tokens, l.Token()), append(holders, l.Holder())
		}
	}
	for _, g := range backend.Held(ctx) {
		tokens, holders = append(tokens, g.Token), append(holders, g.Holder)
	}
	return tokens, holders
}

// endAtDeadlock returns a context that ends with ctx, and when the wait closes a cycle of calls
// that wait for each other. The caller must call end before it returns, which waits until the
// server knows that the wait has ended: otherwise another call that waits for what this one holds
// could fail without a reason. end waits at most for timing.NestedEndWait, and for a quarter of the
// TTL, so that a grant is still useful.
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
		select { // if both are ready, the wait has ended
		case <-ended:
		case <-time.After(min(timing.NestedEndWait, a.cfg.ttl/4)):
		}
	}
}

// watchCycles registers on the server from time to time what the call holds while it waits, until
// ctx ends or the server finds a cycle. Most waits end before the first time. The end of ctx
// cancels no statement, because a canceled one could still arrive after the end of the wait.
func (a *acquisition) watchCycles(ctx context.Context, e *waitlist.Entry) (cycle string) {
	c, told := a.client, false
	n := leasetable.NestedWait{Request: a.request(newRequestID())}
	for pause := timing.DeadlockAfter; cycle == ""; pause = timing.DeadlockEvery {
		select { // more than one case may be ready: another check is harmless
		case <-time.After(pause):
		case <-c.closing:
		case <-ctx.Done():
		}
		if ctx.Err() != nil || c.hasClosed() {
			break
		}
		// One check at a time, so that slow ones don't keep other statements waiting. If both cases
		// are ready, one more check is harmless.
		select {
		case c.deadlockCheck <- struct{}{}:
		case <-ctx.Done():
			continue
		}
		c.tellOfWait(c.cleanup, ctx.Done(), func(try context.Context) (err error) {
			n.Holds, n.Holders = c.heldUnder(ctx)
			n.Ticket = leasetable.NoTicket
			if e.IsHead() {
				n.Ticket = a.bargeOr(e.Row().Ticket())
			}
			cycle, err = c.store.NestedWait(try, &n)
			told = told || err == nil || link.MaybeApplied(err)
			return err
		})
		<-c.deadlockCheck
	}
	if told && cycle == "" {
		end, cancel := context.WithTimeout(c.cleanup, timing.StatementBound)
		defer cancel()
		c.tellOfWait(end, nil, func(try context.Context) error { return c.store.EndNestedWait(try, n.ID) })
	}
	return cycle
}

// tellOfWait sends a statement about a nested wait. One that fails is sent again at once, on
// another connection, until ctx ends or quit is closed.
func (c *Client) tellOfWait(ctx context.Context, quit <-chan struct{}, send func(ctx context.Context) error) {
	if err := retry(ctx, quit, send); err != nil && ctx.Err() == nil && !link.Transient(err) {
		c.lookFailed.Do(func() { c.cfg.logger.Warn("pglock: deadlocks are not found", "error", err) })
	}
}
