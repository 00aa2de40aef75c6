package leasetable

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/leasetable/internal/store"
	"github.com/pglock/pglock-go/leasetable/internal/timing"
	"github.com/pglock/pglock-go/leasetable/internal/waitlist"
)

// releaseCall is one run of the release statement, shared by the callers that wait for it.
type releaseCall struct {
	began time.Time
	again bool          // an earlier call has failed, and may have been applied
	done  chan struct{} // closed when err is set
	err   error
}

// Release ends the lease: its Context is done first, then the lock is free for others, or is so when
// the time of WithMinHold is over. After a success, further calls return nil.
//
// After HandOver, Release returns nil and does nothing.
//
// If the lease was lost before, Release returns a *LostError (errors.Is ErrLost) and changes
// nothing. If the server can't be reached within 5 s, the error wraps ErrUnavailable. The lock then
// expires after its TTL, and Release may be called again.
//
// Release of a joined lease ends that lease only: see WithJoin.
//
// ctx bounds how long Release waits. The release itself continues without it. A ctx that has ended
// before the call, as is common in a defer, is ignored, and so is the end of the lease's own Context.
func (l *Lease) Release(ctx context.Context) error {
	givenUp := ctx.Done()
	if ctx.Err() != nil {
		givenUp = nil
	}
	return l.awaitRelease(ctx, givenUp)
}

// awaitRelease is Release. It waits until givenUp, whose cause is in ctx.
func (l *Lease) awaitRelease(ctx context.Context, givenUp <-chan struct{}) error {
	if l.outer != nil {
		return l.leave()
	}
	if l.Unlocked() {
		l.releaseUnlocked()
		return nil
	}
	if l.parts != nil {
		return l.releaseParts(ctx, givenUp)
	}
	call, f, err := l.startRelease(nil)
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
		l.client.sendRelease(ctx, f)
	}
	// If both are ready, either answer is right: the release goes on without its caller.
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
// returns a new call and its operation, which transfers the lock if to is not nil.
func (l *Lease) startRelease(to *transfer) (*releaseCall, *releaseOp, error) {
	_ = l.Err() // finds an expired deadline
	l.end(ErrReleased)
	l.mu.Lock()
	defer l.mu.Unlock()
	if errors.Is(l.ended, ErrLost) || errors.Is(l.ended, errHandedOver) || errors.Is(l.ended, errUpgraded) {
		return nil, nil, l.ended
	}
	if l.release != nil {
		select {
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
	f := &releaseOp{lease: l, call: call, uncertain: call.again, transfer: to}
	// Otherwise the server decides when the lock is free, or it is released with others.
	if to == nil && l.cfg.kind().batched() && l.cfg.minHold == 0 && l.all == nil {
		f.heir = c.waiters.Reserve(l.fence.Name)
	}
	return call, f, nil
}

// sendRelease sends f on this goroutine or through the dispatcher. When ctx ends before the answer
// arrives, the statement is canceled and then repeated in the background. That is safe: it can only
// end a grant that no holder uses any more. A hand-off is not canceled.
func (c *Client) sendRelease(ctx context.Context, f *releaseOp) {
	if f.heir != nil && ctx.Done() != nil || !c.beginInline(ctx) {
		c.releases.Submit(f)
		return
	}
	defer c.dispatcher.EndInline()
	bound, cancel := c.boundInline(ctx, timing.StatementBound/2)
	defer cancel()
	began := c.events.now()
	f.send(bound)
	c.events.batch(OperationRelease, 1, began, nil)
}

// releaseLost releases a lost lease on the server, without waiting: a renewal that was answered too
// late would block others for another TTL. With a lock delay, they must be blocked.
func (l *Lease) releaseLost() {
	if l.cfg.lockDelay > 0 || l.client.beginRelease() != nil {
		return // it expires; beginRelease fails while the client closes
	}
	l.client.releases.Submit(&releaseOp{lease: l}) // best effort: it expires otherwise
}

// releaseOp is one release in progress. It is a counted call until finish.
type releaseOp struct {
	lease *Lease
	call  *releaseCall // nil if no caller waits for it

	// uncertain says that an earlier attempt may have been applied. A lock that is free then does
	// not mean that the lease was lost.
	uncertain bool

	transfer *transfer // to a waiter of any process, or nil

	heir      *waitlist.Entry // gets the lock by a hand-off, or nil
	handedOff bool            // it got the lock
	notified  bool            // the server notified a waiter
}

// finish reports the result to the callers and ends the counted call. The local head of the queue
// is woken, unless the server's notification reaches it or belongs to an earlier waiter.
func (f *releaseOp) finish(err error) {
	c, l := f.lease.client, f.lease
	if f.call != nil {
		c.events.released(f, err)
		f.call.err = err
		if err == nil || errors.Is(err, ErrLost) {
			c.untrack(l)
		} else { // Close tries again until the server has ended the lease
			time.AfterFunc(time.Until(l.Deadline())+l.cfg.margin+l.cfg.lockDelay, func() { c.untrack(l) })
		}
		close(f.call.done)
		if l.repeated { // an attempt that arrives now would be granted, and nobody would use it
			c.revoke(&store.Request{Name: l.fence.Name, ID: l.grantID, TTL: l.cfg.grantTTL(), Permits: l.cfg.permits})
		}
	}
	if toldElsewhere := f.notified && c.waiters.Listening(); !f.handedOff && !toldElsewhere {
		c.waiters.WakeHead(l.fence.Name)
	}
	c.endCall()
}

// sendReleases releases all of batch in one statement. An operation that needs more continues on a
// goroutine of its own.
func (c *Client) sendReleases(batch []*releaseOp) {
	ctx, cancel := context.WithTimeout(c.life, timing.StatementBound/2)
	defer cancel()
	began := c.events.now()
	if len(batch) == 1 && !c.cfg.forceBatch {
		batch[0].send(ctx)
		c.events.batch(OperationRelease, 1, began, nil)
		return
	}
	batch = slices.DeleteFunc(batch, func(f *releaseOp) bool {
		if f.heir == nil && f.lease.cfg.minHold == 0 && f.lease.cfg.kind().batched() {
			return false
		}
		go f.retry() // the others don't wait for a hand-off's commit
		return true
	})
	if len(batch) == 0 {
		return
	}
	slices.SortFunc(batch, func(a, b *releaseOp) int { return strings.Compare(a.lease.fence.Name, b.lease.fence.Name) })
	fences := make([]fencing.Fence, len(batch))
	for i, f := range batch {
		fences[i] = f.lease.fence
	}
	released, err := c.store.ReleaseBatch(ctx, fences)
	c.events.batch(OperationRelease, len(batch), began, err)
	c.warnOfBatch(err, "releases")
	for _, f := range batch {
		f.uncertain = f.uncertain || store.MaybeApplied(err)
		if notified, ok := released[f.lease.fence]; err == nil && ok {
			f.notified = notified
			f.finish(nil)
		} else {
			go f.retry() // finds out why
		}
	}
}

// send releases one lock, or hands it off. If one statement is not enough, retry continues.
func (f *releaseOp) send(ctx context.Context) {
	if f.heir != nil && f.handOff(ctx) {
		f.finish(nil)
		return
	}
	if released, err := f.sendOnce(ctx); err == nil {
		f.finish(f.releaseResult(released))
		return
	}
	go f.retry()
}

// sendOnce sends the release statement once.
func (f *releaseOp) sendOnce(ctx context.Context) (released bool, err error) {
	l := f.lease
	released, f.notified, err = l.cfg.kind().release(ctx, l.client, l)
	f.uncertain = f.uncertain || store.MaybeApplied(err)
	return released, err
}

// retry hands the lock off if it is meant to be, and otherwise repeats the release statement until
// there is an answer.
func (f *releaseOp) retry() {
	c := f.lease.client
	ctx, cancel := context.WithTimeout(c.life, timing.StatementBound)
	defer cancel()
	if f.heir != nil && f.handOff(ctx) || f.transfer != nil && f.transferLock(ctx) {
		f.finish(nil)
		return
	}
	var released bool
	err := c.retry(ctx, nil, func(ctx context.Context) (err error) {
		released, err = f.sendOnce(ctx)
		return err
	})
	if err == nil {
		err = f.releaseResult(released)
	}
	f.finish(c.store.Explain(fmt.Sprintf("release %q", f.lease.fence.Name), err))
}

// releaseResult returns a *LostError if a release without effect shows that the lease was lost.
func (f *releaseOp) releaseResult(released bool) error {
	l := f.lease
	// A lease that expired after its trusted holder released it was not lost, even if another
	// holder has the lock by now.
	if released || f.uncertain || !time.Now().Before(l.Deadline()) {
		return nil
	}
	return &LostError{Name: l.fence.Name, Token: l.fence.Token, Reason: "its grant ended on the server, or another holder has the lock"}
}

// handOff grants the lock of f to the local head of the queue, in one statement. It reports
// whether that was done; otherwise the lock must be released.
func (f *releaseOp) handOff(ctx context.Context) bool {
	c, heir := f.lease.client, f.heir
	f.heir = nil
	r := heir.Request()
	g, err := c.store.HandOff(ctx, f.lease.fence, r, c.channel)
	f.uncertain = f.uncertain || store.MaybeApplied(err)
	if err != nil && !store.MaybeApplied(err) || err == nil && g.Outcome != store.Granted {
		heir.CancelHandoff()
		return false
	}
	// The heir checks an uncertain grant itself: its next attempt finds it.
	if !heir.Deliver(store.Answer{Grant: g, Err: err, Released: f.lease.fence.Token}) {
		c.revoke(r) // its caller has left; this wakes the next waiter
	} else if err == nil {
		c.events.handedOff(f.lease, r, g.Token)
	}
	f.handedOff = err == nil
	return f.handedOff
}
