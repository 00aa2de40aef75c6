package leasetable

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/pglock/pglock-go/fencing"
)

// errReleasedByClose is the end of a lease whose client was closed.
var errReleasedByClose = fmt.Errorf("%w: %w", ErrReleased, ErrClosed)

// Lease is one grant of one lock. It is safe for concurrent use, and none of its
// accessors waits for the network.
//
//	held ──Release, Close──▶ released
//	  │
//	  └──deadline reached, grant gone──▶ lost
//
// Both ends are final, and in both the Context is done.
type Lease struct {
	client *Client
	fence  fencing.Fence
	cfg    leaseConfig
	ctx    *leaseContext
	cancel context.CancelCauseFunc

	mu sync.Mutex // guards what follows; nothing is sent or awaited under it

	// deadline is when the holder stops trusting the lease, in monotonic time: the
	// moment before the last successful request was sent, plus the TTL, less
	// the safety margin. The server counts the TTL from a later moment.
	deadline time.Time
	timer    *time.Timer // fires at the deadline
	ended    error       // nil while held, then ErrReleased or a *LostError
	failure  error       // of the last renewal, nil after one that succeeded
	release  *releaseCall
}

// deadline returns until when a promise of remaining, but no more than asked for,
// can be trusted if its request was sent at that time.
func (c leaseConfig) deadline(sent time.Time, remaining, asked time.Duration) time.Time {
	return sent.Add(min(remaining, asked) - c.margin)
}

// newLease makes the lease of a grant and has it renewed.
func (c *Client) newLease(ctx context.Context, a *acquisition, g grant) (*Lease, error) {
	l := &Lease{
		client:   c,
		fence:    fencing.Fence{Schema: c.cfg.schema, Name: a.name, Token: g.token},
		cfg:      a.cfg,
		deadline: a.cfg.deadline(g.sent, g.remaining, a.cfg.ttl),
	}
	inner, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	l.ctx, l.cancel = &leaseContext{inner, l}, cancel
	l.mu.Lock()
	l.timer = time.AfterFunc(time.Until(l.deadline), func() { _ = l.Err() })
	l.mu.Unlock()

	c.mu.Lock()
	closed := c.isClosed
	if !closed {
		c.leases[l] = struct{}{}
	}
	c.mu.Unlock()
	if closed { // since this call entered: Close has not seen this lease
		l.end(errReleasedByClose)
		a.withdraw(a.request)
		return nil, a.gaveUp(ctx, ErrClosed)
	}
	if !a.cfg.noRenewal {
		c.renew.add(l)
	}
	return l, nil
}

// Name returns the lock's name.
func (l *Lease) Name() string { return l.fence.Name }

// Token returns the grant's fencing token. It never changes: a renewal keeps it.
func (l *Lease) Token() fencing.Token { return l.fence.Token }

// Fence returns what a writer, here or in another process, is checked against.
func (l *Lease) Fence() fencing.Fence { return l.fence }

// Holder returns the holder's name, as others see it.
func (l *Lease) Holder() string { return l.cfg.holder }

// Context returns a context that is done when the lease is lost or released,
// always before the server could grant the lock to anyone else. Its cause wraps
// ErrLost or ErrReleased. It has the values of the context that was given to Acquire.
//
// Do the protected work under it. In a process that was suspended, Context and
// Err tell the truth when it wakes, but instructions may run before anyone
// asks: what must not be written late needs Guard as well.
func (l *Lease) Context() context.Context { return l.ctx }

// Done returns the channel that is closed when Context is done.
func (l *Lease) Done() <-chan struct{} { return l.ctx.Done() }

// Err returns nil while the lease is held, and then why it ended: a *LostError
// (errors.Is ErrLost), or an error that wraps ErrReleased.
func (l *Lease) Err() error {
	l.mu.Lock()
	if l.ended == nil && !time.Now().Before(l.deadline) {
		l.mu.Unlock()
		return l.lose("its deadline passed without a renewal")
	}
	defer l.mu.Unlock()
	return l.ended
}

// Deadline returns until when the lease is trusted unless renewed: when the
// server would let it expire, or a little earlier. It is in the past once the
// lease has ended by it.
func (l *Lease) Deadline() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.deadline
}

// Guard holds the grant until the end of tx: see fencing.Check, which it calls
// if the lease has not ended already. After success, what tx writes is the
// current holder's when it commits. If the grant is not current any more the error
// wraps fencing.ErrStale, if the lease has ended here ErrLost or ErrReleased.
func (l *Lease) Guard(ctx context.Context, tx fencing.Tx) error {
	if err := l.Err(); err != nil {
		return err
	}
	return fencing.Check(ctx, tx, l.fence)
}

// Bind is Guard for transactions that write to protected tables: see fencing.Bind,
// which it calls if the lease has not ended already.
func (l *Lease) Bind(ctx context.Context, tx fencing.Tx) error {
	if err := l.Err(); err != nil {
		return err
	}
	return fencing.Bind(ctx, tx, l.fence)
}

// extended records a promise of the server. It returns false if the lease has
// ended meanwhile. A promise never shortens another one.
func (l *Lease) extended(sent time.Time, remaining, asked time.Duration) bool {
	if l.Err() != nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended != nil {
		return false
	}
	l.failure = nil
	if d := l.cfg.deadline(sent, remaining, asked); d.After(l.deadline) {
		l.deadline = d
		// The timer may be firing: it looks at the deadline again, in Err.
		l.timer.Reset(time.Until(d))
	}
	return true
}

// failed records why a renewal got no answer, for the error if the lease is lost.
func (l *Lease) failed(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failure = err
}

// lose ends the lease as lost, unless it has ended, and returns why it ended.
func (l *Lease) lose(reason string) error {
	l.mu.Lock()
	lost := &LostError{Name: l.fence.Name, Token: l.fence.Token, Reason: reason, Cause: l.failure}
	l.mu.Unlock()
	if l.end(lost) {
		l.client.cfg.logger.Warn("pglock: lease lost", "name", lost.Name, "token", lost.Token, "reason", reason, "error", lost.Cause)
		return lost
	}
	return l.Err()
}

// end ends the lease for that reason, and reports whether it was not ended yet.
func (l *Lease) end(why error) bool {
	l.mu.Lock()
	if l.ended != nil {
		l.mu.Unlock()
		return false
	}
	l.ended = why
	l.timer.Stop()
	l.mu.Unlock()
	l.cancel(why) // not under mu: it calls into contexts derived by others

	c := l.client
	c.renew.remove(l)
	if errors.Is(why, ErrLost) { // otherwise Release sees to it
		c.forget(l)
	}
	return true
}

// forget takes l off the list of leases that Close releases.
func (c *Client) forget(l *Lease) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.leases, l)
}

// leaseContext is done when its lease ends. Its Err looks at the clock, so that
// a process that slept past the deadline is told before the timer has run.
type leaseContext struct {
	context.Context //nolint:containedctx // it is a context itself
	lease           *Lease
}

func (c *leaseContext) Err() error {
	_ = c.lease.Err() // ends the context if it is due
	return c.Context.Err()
}
