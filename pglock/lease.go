package pglock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/leasetable"
	"github.com/pglock/pglock-go/pglock/observe"
)

var errReleasedByClose = errs.Errorf("%w: %w", ErrReleased, ErrClosed)

// Lease is one grant of one lock, with one token for all of the lock's names. It is safe for
// concurrent use, and no accessor waits for the network.
//
//	Acquire, Adopt
//	  │   ┌─ renewals, Extend
//	  ▼   ▼
//	 held ─┼── Release, Close ───────────────▶ released: the lock is free, at the end of WithMinHold
//	  │    ├── HandOver ─────────────────────▶ handed over: the grant continues in another process
//	  │    └── deadline reached, grant gone ─▶ lost: the lock is free after WithLockDelay
//	  │
//	  └─ asked to release, by RequestRelease or WithMaxHold: still held
//
// The three end states are final, and the Context is done in all of them. A lease that was handed
// over counts as released.
type Lease struct {
	client *Client
	fence  fencing.Fence
	cfg    *leaseConfig
	ctx    *leaseContext
	cancel context.CancelCauseFunc
	since  time.Time // of the grant: see startedGrant

	renewUntil time.Time // by WithMaxHold; zero: no limit

	grantID string // the request that was granted
	lost    int    // attempts with that ID that may still be on their way to the server

	mu sync.Mutex // guards the fields below; no I/O under it

	// deadline is when the holder stops trusting the lease, in monotonic time: the time before the
	// last successful request was sent, plus the TTL, less the safety margin. The server expires it
	// later, because it counts the TTL from the arrival.
	deadline time.Time
	timer    *time.Timer // fires at the deadline
	ended    error       // nil while held, then ErrReleased or a *LostError
	failure  error       // of the last renewal, nil after a success
	release  *releaseCall
	request  releaseRequest

	maxHoldTimer *time.Timer // fires at renewUntil; nil: no limit

	held      leasetable.Permits // cfg.permits, or less after Downgrade and KeepPermits
	upgrading chan struct{}      // closed at the end of the TryUpgrade in progress; nil if there is none
}

func (c *Client) newLease(ctx context.Context, a *acquisition, g leasetable.Grant) (*Lease, error) {
	l := c.startLease(ctx, a.cfg, startedGrant{
		fence: fencing.Fence{Schema: c.cfg.schema, Name: a.name, Token: g.Token}, id: a.id,
		sent: g.Sent, remaining: g.Remaining,
		granted: g.Sent.Add(g.Remaining - a.cfg.grantTTL()), // earlier than Sent if the answer was lost
		lost:    a.lost,
	})
	if l == nil {
		a.revokeLate(a.lost + 1)
		return nil, a.waitError(ctx, ErrClosed)
	}
	return l, nil
}

// startedGrant has the server's promise for a grant.
type startedGrant struct {
	fence     fencing.Fence
	id        string        // of the request that was granted
	sent      time.Time     // just before the statement was sent
	remaining time.Duration // from sent on
	granted   time.Time     // not after the server's grant
	lost      int           // see Lease.lost, which Close may read as soon as the lease is started
}

// startLease makes a lease of g and plans its renewal. It returns nil if the client was closed
// since the call began.
func (c *Client) startLease(ctx context.Context, cfg *leaseConfig, g startedGrant) *Lease {
	l := &Lease{
		client:   c,
		fence:    g.fence,
		cfg:      cfg,
		grantID:  g.id,
		lost:     g.lost,
		since:    g.granted,
		held:     cfg.permits,
		deadline: cfg.deadline(g.sent, g.remaining, cfg.ttl),

		renewUntil: cfg.renewUntil(g.granted),
	}
	inner, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	l.ctx, l.cancel = &leaseContext{inner, l, cancel}, cancel
	l.mu.Lock()
	l.timer = time.AfterFunc(time.Until(l.deadline), func() { _ = l.Err() })
	l.startMaxHold()
	l.mu.Unlock()

	added, notified := c.registry.add(l)
	if !added { // Close has not seen this lease
		l.end(errReleasedByClose)
		return nil
	}
	if !cfg.noRenewal {
		c.renew.add(l)
	}
	if notified {
		c.signals.notify(l)
	}
	return l
}

// Name returns the lock's name, and for several names their display name.
func (l *Lease) Name() string { return l.fence.Name }

// Token returns the grant's fencing token. A renewal does not change it.
func (l *Lease) Token() fencing.Token { return l.fence.Token }

// Fence returns the grant's name and token, for checks by writers in any process. Every check
// refuses that of several names: see Fences.
func (l *Lease) Fence() fencing.Fence {
	if l.several() {
		return fencing.Fence{Schema: l.fence.Schema, Token: l.fence.Token}
	}
	return l.fence
}

// Names returns the names that the lease holds, sorted.
func (l *Lease) Names() []string {
	if l.several() {
		return slices.Clone(l.cfg.names)
	}
	return []string{l.fence.Name}
}

// Fences returns the fence of each name that the lease holds, in the order of Names. All have the
// same token.
func (l *Lease) Fences() []fencing.Fence { return l.appendFences(make([]fencing.Fence, 0, l.count())) }

func (l *Lease) appendFences(all []fencing.Fence) []fencing.Fence {
	for i := range l.count() {
		all = append(all, l.fenceAt(i))
	}
	return all
}

// several reports whether the lease has several names, which are those of cfg.names.
func (l *Lease) several() bool { return l.cfg.names != nil }

func (l *Lease) count() int { return max(len(l.cfg.names), 1) }

// nameAt returns the name with index i, below count.
func (l *Lease) nameAt(i int) string {
	if l.several() {
		return l.cfg.names[i]
	}
	return l.fence.Name
}

func (l *Lease) fenceAt(i int) fencing.Fence {
	return fencing.Fence{Schema: l.fence.Schema, Name: l.nameAt(i), Token: l.fence.Token}
}

func (l *Lease) hasName(name string) bool {
	if !l.several() {
		return l.fence.Name == name
	}
	_, found := slices.BinarySearch(l.cfg.names, name)
	return found
}

func (l *Lease) permitsAt(i int) leasetable.Permits {
	switch {
	case !l.several():
		return l.permits()
	case l.cfg.each == nil:
		return leasetable.Permits{}
	}
	return l.cfg.each[i]
}

// permitsOf returns the permits that the lease has of that name, and whether it has the name.
func (l *Lease) permitsOf(name string) (p leasetable.Permits, ok bool) {
	for i := range l.count() {
		if l.nameAt(i) == name {
			return l.permitsAt(i), true
		}
	}
	return p, false
}

// shared reports whether others can hold one of the names at the same time.
func (l *Lease) shared() bool {
	for i := range l.count() {
		if l.permitsAt(i).Shared() {
			return true
		}
	}
	return false
}

// Holder returns the holder's name that others see.
func (l *Lease) Holder() string { return l.cfg.holder }

// Context returns a context that is done when the lease is lost or released, before the server could
// grant the lock to another holder, unless an operator revokes the grant: a revocation ends the
// Context once the holder is notified, or at its next renewal. The cause wraps ErrLost or
// ErrReleased, and the values are those of Acquire's context.
//
// Do the protected work under this context, or under WithContext if the work has its own. Writes
// that must not be late need Guard as well.
func (l *Lease) Context() context.Context { return l.ctx }

// Done returns the Done channel of Context.
func (l *Lease) Done() <-chan struct{} { return l.ctx.Done() }

// Err returns nil while the lease is held, and afterwards a *LostError, or an error that wraps
// ErrReleased.
func (l *Lease) Err() error {
	l.mu.Lock()
	if l.ended == nil && !time.Now().Before(l.deadline) {
		l.mu.Unlock()
		return l.loseByTime()
	}
	defer l.mu.Unlock()
	return l.ended
}

// Deadline returns the end of the time for which the holder can trust the lease unless it is
// renewed. The server expires it then or later.
func (l *Lease) Deadline() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.deadline
}

// Guard protects the writes of tx by locking the grant until the end of tx, with fencing.Check. If
// it succeeds, tx can commit only while this lease's grant, of each of its names, is the current
// one. Otherwise the error is a *StaleError. If the lease has already ended in this process, the
// error also wraps that of Err, and tx is unchanged. A rollback of tx to a savepoint that was set
// before Guard takes the protection back, so call Guard again for the writes that follow.
func (l *Lease) Guard(ctx context.Context, tx fencing.Tx) error {
	err := l.stale()
	if err == nil {
		err = fencing.CheckAll(ctx, tx, l.Fences()...)
	}
	return l.reportStale(ctx, err)
}

// Bind is Guard by fencing.Bind, for writes to protected tables.
func (l *Lease) Bind(ctx context.Context, tx fencing.Tx) error {
	if err := l.stale(); err != nil {
		return l.reportStale(ctx, err)
	}
	if l.shared() {
		return errs.Errorf("pglock: bind %q: %w: concurrent holders have no order: use Guard", l.fence.Name, fencing.ErrShared)
	}
	return l.reportStale(ctx, fencing.BindAll(ctx, tx, l.Fences()...))
}

func (l *Lease) reportStale(ctx context.Context, err error) error {
	return l.client.reportRefused(ctx, l.fence, err, observe.OutcomeStale, fencing.ErrStale)
}

// stale returns the error of Err so that it also wraps fencing.ErrStale.
func (l *Lease) stale() error {
	err := l.Err()
	if err == nil {
		return nil
	}
	return errs.Errorf("%w: %w", err, &fencing.StaleError{Resource: l.fence.Name, Token: l.fence.Token, Current: l.fence.Token})
}

// recordExtension records a promise of the server, which never shortens another one. It reports
// false if the lease has ended meanwhile.
func (l *Lease) recordExtension(sent time.Time, remaining, ttl time.Duration) bool {
	if l.Err() != nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended != nil {
		return false
	}
	l.failure = nil
	if d := l.notAfterMaxHold(l.cfg.deadline(sent, remaining, ttl)); d.After(l.deadline) {
		l.deadline = d
		// If the timer is firing, Err reads the new deadline.
		l.timer.Reset(time.Until(d))
	}
	return true
}

// recordFailure records why a renewal failed, for the LostError if the lease is lost.
func (l *Lease) recordFailure(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failure = err
}

// loseByTime ends the lease at its deadline.
func (l *Lease) loseByTime() error {
	if l.maxHoldReached(time.Now()) {
		l.recordFailure(errMaxHold)
		return l.lose(l.fence.Name, fmt.Sprintf("WithMaxHold stopped its renewals %v after the grant", l.cfg.maxHold))
	}
	return l.lose(l.fence.Name, "its deadline passed without a renewal")
}

// lose ends the lease as lost, unless it has ended, and returns the reason of its end. Of several
// names, name is the one whose grant has ended, while the others stay held until they expire or are
// released.
func (l *Lease) lose(name, reason string) error {
	l.mu.Lock()
	lost := &LostError{Name: name, Token: l.fence.Token, Reason: reason, Cause: l.failure}
	expired := !time.Now().Before(l.deadline)
	l.mu.Unlock()
	if l.end(lost) {
		l.client.events.lost(l, expired, lost)
		return lost
	}
	return l.Err()
}

// end ends the lease for the reason why, and reports whether it was still held.
func (l *Lease) end(why error) bool {
	l.mu.Lock()
	if l.ended != nil {
		l.mu.Unlock()
		return false
	}
	l.ended = why
	l.timer.Stop()
	if l.maxHoldTimer != nil {
		l.maxHoldTimer.Stop()
	}
	l.mu.Unlock()
	l.cancel(why) // not under mu: it calls into contexts derived by others

	c := l.client
	c.renew.remove(l)
	if errors.Is(why, ErrLost) { // otherwise the release removes it
		c.registry.remove(l)
	}
	return true
}

// WithContext returns a context that is done when parent is done or the lease ends, whichever is
// first. Its cause is that of parent, or the lease's Err, and its values and deadline are those of
// parent.
//
// Use it for work that both its own context and the lease must be able to end. Like the lease's
// Context, it is correct at the first call of Err or Done after a pause of the process, since both
// read the clock, while a context derived from it ends some microseconds later. The caller must
// call cancel when the work has ended, which does not affect the lease.
func (l *Lease) WithContext(parent context.Context) (ctx context.Context, cancel context.CancelFunc) {
	inner, end := context.WithCancelCause(parent)
	c := &leaseContext{inner, l, end}
	unlink := context.AfterFunc(l.ctx, func() { _ = c.Err() })
	return c, func() {
		unlink()
		end(nil)
	}
}

// leaseContext is done when its lease ends. Err and Done read the clock, because in a process that
// slept past the deadline the lease's timer needs a moment to fire, and the work must not use that
// moment.
type leaseContext struct {
	context.Context //nolint:containedctx // it is a context itself
	lease           *Lease
	cancel          context.CancelCauseFunc // of Context
}

func (c *leaseContext) Err() error {
	// The lease records its end before it cancels its contexts, so a call in between cancels this
	// one.
	if err := c.lease.Err(); err != nil {
		c.cancel(err) // no effect on a context that is done
	}
	return c.Context.Err()
}

func (c *leaseContext) Done() <-chan struct{} {
	_ = c.Err()
	return c.Context.Done()
}

// Token is a [fencing.Token], a number that grows with every grant.
type Token = fencing.Token

// Fence is a [fencing.Fence], the Schema, Name and Token of one grant.
type Fence = fencing.Fence
