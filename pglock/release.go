package pglock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/timing"
	"github.com/pglock/pglock-go/leasetable"
	"github.com/pglock/pglock-go/pglock/internal/link"
	"github.com/pglock/pglock-go/pglock/internal/waitlist"
	"github.com/pglock/pglock-go/pglock/observe"
)

// releaseCall is one release, shared by the calls of Release that wait for its result.
type releaseCall struct {
	began time.Time
	again bool          // an earlier call failed, and may have been applied
	done  chan struct{} // closed when err is set
	err   error
}

// Release ends the lease: its Context is done first, and then the lock is free for others, if need
// be at the end of WithMinHold. After a success, and after HandOver, further calls return nil.
//
// If the lease was lost before, Release changes nothing and returns a *LostError. If the server
// can't be reached within 5 s, the error wraps ErrUnavailable, and the lock expires after its TTL
// unless a later call succeeds. ctx bounds how long Release waits, while the release itself
// continues without it. A ctx that has ended before the call, as is common in a defer, is ignored,
// and so is the end of the lease's own Context.
func (l *Lease) Release(ctx context.Context) error {
	givenUp := ctx.Done()
	if ctx.Err() != nil {
		givenUp = nil
	}
	return l.awaitRelease(ctx, givenUp)
}

// awaitRelease is Release. It waits until givenUp, whose cause is in ctx.
func (l *Lease) awaitRelease(ctx context.Context, givenUp <-chan struct{}) error {
	call, f, err := l.startRelease()
	switch {
	case errors.Is(err, errHandedOver), errors.Is(err, errUpgraded):
		return nil // the grant is another process's, or another lease's
	case err != nil:
		return err
	}
	if f != nil {
		if givenUp == nil {
			ctx = context.WithoutCancel(ctx)
		}
		l.client.dispatch.release(ctx, f)
	}
	// More than one case may be ready. Any order is safe, because the release continues without its
	// caller.
	select {
	case <-call.done:
		return call.err
	case <-givenUp:
		if errors.Is(context.Cause(ctx), ErrReleased) { // ctx is of this lease, and has ended with it
			<-call.done
			return call.err
		}
		return errs.Errorf("pglock: release %q: not done yet: %w", l.fence.Name, context.Cause(ctx))
	}
}

// startRelease returns the call in progress, or the last one if it was conclusive. Otherwise it
// returns a new call and its operation.
func (l *Lease) startRelease() (*releaseCall, *releaseOp, error) {
	_ = l.Err() // finds an expired deadline
	l.end(ErrReleased)
	l.mu.Lock()
	defer l.mu.Unlock()
	if errors.Is(l.ended, ErrLost) && !l.keepsNames() || errors.Is(l.ended, errHandedOver) || errors.Is(l.ended, errUpgraded) {
		return nil, nil, l.ended
	}
	if l.release != nil {
		select { // done is closed after err was set; an inconclusive release is sent again
		case <-l.release.done:
			if l.release.err == nil || errors.Is(l.release.err, ErrLost) {
				return l.release, nil, nil
			}
		default:
			return l.release, nil, nil
		}
	}
	c := l.client
	if err := c.beginRelease(); err != nil {
		return nil, nil, errs.Errorf("pglock: release %q: %w", l.fence.Name, err)
	}
	call := &releaseCall{began: time.Now(), again: l.release != nil, done: make(chan struct{})}
	l.release = call
	f := &releaseOp{lease: l, call: call, uncertain: call.again}
	if l.cfg.plain() && l.cfg.minHold == 0 { // with a shortest hold, the server decides when the lock is free
		f.successor = c.waiters.Reserve(l.fence.Name)
	}
	return call, f, nil
}

// keepsNames reports whether the lease was lost with one of its names, while others may still be
// held. The caller holds mu.
func (l *Lease) keepsNames() bool { return l.several() && time.Now().Before(l.deadline) }

// releaseLost releases a lost lease on the server, without waiting, because a renewal that was
// answered too late would block others for another TTL. With a lock delay, they must be blocked.
func (l *Lease) releaseLost() {
	if l.cfg.lockDelay > 0 || l.client.beginRelease() != nil {
		return // it expires; beginRelease fails while the client closes
	}
	l.client.dispatch.releases.Submit(&releaseOp{lease: l}) // best effort: it expires otherwise
}

// releaseOp is one release in progress, which is a counted call until finish.
type releaseOp struct {
	lease *Lease
	call  *releaseCall // nil if no caller waits for it

	// uncertain reports that an earlier attempt may have been applied, so a free lock does not mean
	// that the lease was lost.
	uncertain bool

	successor *waitlist.Entry // receives the lock by a hand-off; nil without one
	handedOff bool            // the successor received the lock
	notified  bool            // the server notified a waiter of each name
	missing   string          // a name whose grant was not current
}

// finish reports the result to the callers and ends the counted call. It wakes the local head of
// the queue, unless the server's notification reaches it or belongs to an earlier waiter.
func (f *releaseOp) finish(err error) {
	c, l := f.lease.client, f.lease
	if f.call != nil {
		if !errors.Is(l.Err(), ErrLost) { // a loss has already raised the event of the end
			c.events.releaseEnds(l, f.call.began, observe.ReleaseEvent{HandedOff: f.handedOff, Again: f.call.again, Err: err})
		}
		f.call.err = err
		if err == nil || errors.Is(err, ErrLost) {
			c.registry.remove(l)
		} else { // Close tries again until the server has ended the lease
			time.AfterFunc(time.Until(l.Deadline())+l.cfg.margin+l.cfg.lockDelay, func() { c.registry.remove(l) })
		}
		close(f.call.done)
		l.revokeLost()
	}
	if toldElsewhere := f.notified && c.waiters.Listening(); !f.handedOff && !toldElsewhere {
		for i := range l.count() {
			c.waiters.WakeHead(l.nameAt(i))
		}
	}
	c.endCall()
}

// revokeLost ends what attempts without an answer are granted if they arrive after the end of the
// grant, since they have no caller. This one must be inside a counted call.
func (l *Lease) revokeLost() {
	if l.lost > 0 {
		l.client.revoke(l.cfg.request(l.fence.Name, l.grantID), l.lost)
	}
}

// send releases one lock or hands it off. If one statement is not enough, retry continues.
func (f *releaseOp) send(ctx context.Context) {
	if f.successor != nil && f.handOff(ctx) {
		f.finish(nil)
		return
	}
	if err := f.sendOnce(ctx); err == nil {
		f.finish(f.releaseResult())
		return
	}
	go f.retry()
}

// sendOnce sends the release statement once. For several names it sends one for all that have
// permits, and one for all the others. If the answer does not contain each of the latter, it asks
// which grants are left, whose rows are locked for the moment, and sends one statement for each of
// them.
func (f *releaseOp) sendOnce(ctx context.Context) error {
	l, store := f.lease, f.lease.client.store
	var plain []fencing.Fence
	var shared []string
	for i := range l.count() {
		if l.permitsAt(i).Any() {
			shared = append(shared, l.nameAt(i))
		} else if l.several() {
			plain = append(plain, l.fenceAt(i))
		}
	}
	var done map[fencing.Fence]bool
	var doneShared map[string]bool
	var err error
	if len(plain) > 0 {
		done, err = store.ReleaseBatch(ctx, plain, slices.Repeat([]time.Duration{l.cfg.minHold}, len(plain)))
	}
	if len(shared) > 0 && err == nil {
		doneShared, err = store.ReleasePermits(ctx, shared, l.fence.Token, !l.several() && l.permitsAt(0).Shared())
	}
	var left map[fencing.Fence]leasetable.Renewal
	if len(done) < len(plain) && err == nil {
		left, err = store.CheckGrants(ctx, plain)
	}
	f.missing, f.notified = "", true
	for i := 0; i < l.count() && err == nil; i++ {
		notified, released := done[l.fenceAt(i)]
		switch {
		case released:
		case l.permitsAt(i).Any():
			notified, released = doneShared[l.nameAt(i)]
		case l.several() && left[l.fenceAt(i)].Outcome != leasetable.Busy: // it has ended
		default:
			released, notified, err = store.Release(ctx, l.fenceAt(i), l.cfg.minHold)
		}
		f.notified = f.notified && notified
		if !released {
			f.missing = l.nameAt(i)
		}
	}
	// One of the statements may be done, and another one have to be repeated.
	f.uncertain = f.uncertain || link.MaybeApplied(err) || err != nil && len(done)+len(doneShared) > 0
	return err
}

// retry hands the lock off if it has a successor, and otherwise repeats the release statement until
// there is an answer.
func (f *releaseOp) retry() {
	c := f.lease.client
	ctx, cancel := context.WithTimeout(c.life, timing.StatementBound)
	defer cancel()
	if f.successor != nil && f.handOff(ctx) {
		f.finish(nil)
		return
	}
	err := retry(ctx, nil, f.sendOnce)
	if err == nil {
		err = f.releaseResult()
	}
	f.finish(c.store.Explain(fmt.Sprintf("release %q", f.lease.fence.Name), err))
}

// releaseResult returns a *LostError if a release without effect shows that the lease was lost.
func (f *releaseOp) releaseResult() error {
	l := f.lease
	if lost := l.Err(); f.call != nil && errors.Is(lost, ErrLost) { // with one of its names
		return lost
	}
	// A lease that expired after its trusted holder released it was not lost, even if another
	// holder has the lock by now.
	if f.missing == "" || f.uncertain || !time.Now().Before(l.Deadline()) {
		return nil
	}
	return &LostError{Name: f.missing, Token: l.fence.Token, Reason: "its grant ended on the server, or another holder has the lock"}
}

// handOff grants the lock of f to the local head of the queue in one statement, and reports whether
// it did. Otherwise the lock must be released.
func (f *releaseOp) handOff(ctx context.Context) bool {
	c, successor := f.lease.client, f.successor
	f.successor = nil
	r := successor.Request()
	g, err := c.store.HandOff(ctx, f.lease.fence, r, c.channel)
	f.uncertain = f.uncertain || link.MaybeApplied(err)
	if err != nil && !link.MaybeApplied(err) || err == nil && g.Outcome != leasetable.Granted {
		successor.CancelHandoff()
		return false
	}
	// The successor checks an uncertain grant itself, because its next attempt finds it.
	if !successor.Deliver(waitlist.Answer{Grant: g, Err: err, Released: f.lease.fence.Token}) {
		c.revoke(r, 1) // its caller has left; this wakes the next waiter
	} else if err == nil {
		c.events.handedOff(f.lease, r, g.Token)
	}
	f.handedOff = err == nil
	return f.handedOff
}
