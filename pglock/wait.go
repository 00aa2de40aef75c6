package pglock

import (
	"context"
	"errors"
	"time"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/backoff"
	"github.com/pglock/pglock-go/internal/random"
	"github.com/pglock/pglock-go/internal/timing"
	"github.com/pglock/pglock-go/leasetable"
	"github.com/pglock/pglock-go/pglock/internal/link"
	"github.com/pglock/pglock-go/pglock/internal/waitlist"
	"github.com/pglock/pglock-go/pglock/observe"
)

// maxRaces is how often a waiter makes another attempt at once, because the lock's row was inserted
// or its request was used up during the last one.
const maxRaces = 5

// waiter is an acquisition in the wait queue, which holds only its entry and a timer while it
// sleeps. It wakes up
//
//   - by a notification, or by a release in this process (Woken);
//   - by a release in this process that hands the lock off to it (Handed);
//   - when the holder's lease expires;
//   - when a look at its lock finds that free, or moves its entry of the overflow list to the
//     queue;
//   - after pauses that grow, much sooner without a listener.
//
// In all cases only the lock's row counts, so the waiter makes an attempt, and sleeps again if the
// lock is busy.
type waiter struct {
	*acquisition
	entry *waitlist.Entry

	ahead           int           // other waiters before this one, as far as is known
	remaining       time.Duration // of the blocking grant; 0: free, but not for us
	token           fencing.Token // of that grant
	awaitingHandoff bool          // this process holds the lock: a hand-off is likely
	handoffWaited   bool          // a hand-off was waited for
	pause           backoff.Backoff

	ticketDrawn  bool      // a ticket was drawn since the last sleep
	races        int       // in a row
	blockedSince time.Time // the lock is free for us except for a row lock; zero: it is not
	untilExpiry  bool      // it sleeps until the blocking grant expires

	last         error // the last obstacle
	failingSince time.Time
}

// wait makes attempts until the lock is granted, ctx ends, or the time of WithWait has passed.
func (a *acquisition) wait(ctx context.Context) (g leasetable.Grant, err error) {
	caller := ctx
	if a.cfg.waitSet {
		if a.cfg.wait == 0 {
			return a.tryOnce(ctx)
		}
		var end func()
		ctx, end = a.limitWait(ctx)
		defer end()
	}
	waiters := a.client.waiters
	a.awaitRemoval(ctx)
	if key := waitlist.Key(a.name, a.cfg.names); waiters.BeginSolo(key) {
		g, err = a.attempt(ctx, a.bargeOr(leasetable.NoTicket), false)
		waiters.EndSolo(key)
		if err == nil && g.Outcome == leasetable.Granted {
			return g, nil
		}
	}
	if a.limit != nil {
		a.limit.restrict()
	}
	return a.waitQueued(ctx, caller, &g, err)
}

// waitQueued is wait after the first attempt, if there was one. ctx is that of the caller, or ends
// with the time of WithWait.
func (a *acquisition) waitQueued(ctx, caller context.Context, first *leasetable.Grant, failure error) (g leasetable.Grant, err error) {
	e := a.client.waiters.Push(a.request(a.id), a.began)
	defer func() { a.leaveWaitlist(e, err == nil) }()
	w := &waiter{acquisition: a, entry: e, pause: newPause()}
	if failure != nil {
		err = w.recordFailure(ctx, failure)
	} else if first.Outcome == leasetable.Busy {
		w.last = a.busyError(*first)
		e.NoteBusy(*first)
	}
	if err == nil && a.lost > 0 && !e.IsHead() {
		w.startOver()
	}
	if tokens, _ := a.client.heldUnder(ctx); tokens != nil {
		var end func()
		ctx, end = a.endAtDeadlock(ctx, e)
		defer end()
	}
	if err == nil {
		err = w.awaitHead(ctx)
	}
	if err == nil {
		g, err = w.run(ctx)
	}
	if timeOver := context.Cause(ctx) == errWaitOver && errors.Is(err, ErrTimeout); timeOver && !a.attempted { //nolint:errorlint // see endOf
		return w.lastAttempt(ctx, caller)
	}
	return g, err
}

// startOver revokes the grant of an attempt whose answer was lost, if the server has made one, and
// replaces the request. A call behind the head makes no attempt that would find the grant, for
// which the head would wait until it expires.
func (w *waiter) startOver() {
	if _, ok := w.entry.BeginAttempt(); !ok {
		return // it is the head by now, and a hand-off has replaced the grant
	}
	w.revokeLate(w.lost)
	w.id, w.lost = newRequestID(), 0
	w.entry.EndAttempt(w.id, leasetable.NoTicket, false, false)
}

// awaitHead waits until the call is the head of the local queue. That is where a thousand callers
// sleep, so it and its callers have small frames, which TestManyWaiters measures: no Grant passes through it.
func (w *waiter) awaitHead(ctx context.Context) error {
	if !w.entry.IsHead() {
		w.observeWait(ctx)
	}
	// More than one case may be ready. Any order is safe, because a caller that becomes the head
	// when ctx ends finds that in run, and an outage ends the call in any case.
	select {
	case <-w.entry.Head:
		return nil
	case err := <-w.entry.Outage:
		return w.outageError(err)
	case <-ctx.Done():
	case <-w.client.closing:
	}
	return w.giveUp(ctx)
}

// lastAttempt makes the attempt of a call whose time ended, with ctx, before it had one, because
// other calls of this process were at work on the lock. A hand-off to this call in progress counts
// as its attempt. While the lock is free for others, as before the head of the queue acquires it,
// lastAttempt tries again.
func (w *waiter) lastAttempt(ctx, caller context.Context) (g leasetable.Grant, err error) {
	const looks = 5
	bounded, cancel := context.WithTimeout(caller, timing.FirstAttempt)
	defer cancel()
	w.pause = newPause()
	for sent := w.facts.attempts; err == nil && g.Outcome != leasetable.Granted && !w.attempted && w.facts.attempts < sent+looks; {
		w.awaitRemoval(bounded) // a ticket that is being deleted keeps this process out
		if g, _, err = w.tryAcquire(bounded, stepAcquireFull); err == nil && g.Outcome != leasetable.Granted && !w.attempted {
			g, _, err = w.sleep(bounded)
		}
	}
	switch {
	case err == nil && g.Outcome == leasetable.Granted:
		return g, nil
	case err == nil, bounded.Err() != nil, errors.Is(err, ErrClosed):
	case !errors.Is(err, ErrUnavailable):
		return g, err
	default:
		w.last = err
	}
	return g, w.giveUp(ctx)
}

// giveUp returns the error of a wait that has ended. Without an attempt, the error has the holder
// that this process knows of.
func (w *waiter) giveUp(ctx context.Context) error {
	if busy := w.localHolder(); w.last == nil && busy != nil {
		w.last = busy
	}
	if g, ok := w.entry.LastBusy(); w.last == nil && ok {
		w.last = w.busyError(g)
	}
	return w.waitError(ctx, w.last)
}

// localHolder returns the holder that this process knows of without an attempt, or nil.
func (a *acquisition) localHolder() *BusyError {
	for _, name := range a.names() { // a.name of several may be the name of another lock
		if l := a.client.registry.newestOf(name); l != nil && l.Err() == nil {
			return &BusyError{
				Name: name, Holder: l.Holder(), Token: l.Token(), Remaining: time.Until(l.Deadline()) + l.cfg.margin,
				ThisClient: true,
			}
		}
	}
	return nil
}

// observeWait raises the WaitEvent of the call, once. It has a small frame, as awaitHead says.
func (w *waiter) observeWait(ctx context.Context) {
	if !w.facts.queued && w.client.events.on() {
		w.raiseWait(ctx)
	}
}

func (w *waiter) raiseWait(ctx context.Context) {
	w.facts.queued, w.facts.ahead = true, w.facts.ahead+w.entry.Before
	var busy *BusyError
	known := errors.As(w.last, &busy)
	if known {
		w.facts.blocker = busy.Token
	}
	for _, name := range w.names() {
		ev := observe.WaitEvent{Name: name, Ahead: w.facts.ahead, Together: len(w.cfg.names)}
		if known && busy.Name == name {
			ev.Holder, ev.Token, ev.Remaining = busy.Holder, busy.Token, busy.Remaining
		}
		w.client.events.wait(ctx, ev)
	}
}

// leaveWaitlist removes the entry, and revokes a grant that was handed off to a caller that gave
// up. A ticket that is not needed any more is deleted before the call returns, within
// timing.CancelGrace.
func (a *acquisition) leaveWaitlist(e *waitlist.Entry, granted bool) {
	gone := e.Leave(granted)
	select {
	case got := <-e.Handed: // a hand-off that arrived with the end of ctx
		if got.Err == nil || link.MaybeApplied(got.Err) {
			a.revokeLate(1)
		}
	default:
	}
	if gone == nil || granted {
		return
	}
	// The deletion continues after the grace, and AwaitRemoval makes the next caller wait for it.
	select {
	case <-gone:
	case <-time.After(timing.CancelGrace):
	}
}

// run waits as the head of the local queue. Each step returns the next one.
func (w *waiter) run(ctx context.Context) (leasetable.Grant, error) {
	next := w.firstStep()
	for {
		var g leasetable.Grant
		var err error
		switch next {
		case stepAcquireFast, stepAcquireFull:
			g, next, err = w.tryAcquire(ctx, next)
		case stepJoinQueue:
			next, err = w.drawTicket(ctx)
		case stepSleep:
			g, next, err = w.sleep(ctx)
		}
		switch {
		case err != nil:
			if err := w.recordFailure(ctx, err); err != nil {
				return g, err
			}
			next = stepSleep
		case g.Outcome == leasetable.Granted:
			return g, nil
		}
	}
}

func (w *waiter) firstStep() step {
	switch row := w.entry.Row(); {
	case w.entry.AfterGrant && w.cfg.plain():
		w.awaitingHandoff = true
		return stepSleep
	case row.Joined(): // by an earlier waiter that has left
		return stepAcquireFull
	case row.Exists(): // other processes waited lately
		return stepJoinQueue
	case w.last != nil:
		return stepAcquireFull
	}
	return stepAcquireFast
}

type step int

const (
	stepSleep       step = iota
	stepAcquireFast      // the lock is likely free
	stepAcquireFull      // the lock is likely held
	stepJoinQueue        // draw a ticket
)

// tryAcquire makes one attempt, unless the lock is being handed off to this waiter.
func (w *waiter) tryAcquire(ctx context.Context, how step) (g leasetable.Grant, next step, err error) {
	ticket, ok := w.entry.BeginAttempt()
	if !ok {
		return g, stepSleep, nil // until the hand-off ends
	}
	g, err = w.attempt(ctx, w.bargeOr(ticket), how == stepAcquireFull)
	// A hand-off uses no ticket, and an attempt that arrived before the ticket was drawn has not used that one.
	used := g.Outcome == leasetable.Granted && w.lost == 0 && int64(g.Token) > ticket || g.Invalid
	w.entry.EndAttempt(w.id, ticket, err == nil, err == nil && used && !w.cfg.barging)
	switch {
	case err != nil:
		return g, stepSleep, err
	case g.Outcome == leasetable.Granted:
		return g, stepSleep, nil
	}
	w.failingSince = time.Time{}
	if g.Outcome == leasetable.Busy {
		return g, w.afterBusy(g), nil
	}
	// The row was inserted or the request was used up meanwhile. Usually the next attempt gets
	// another answer, unless row security hides the row.
	if w.races++; w.races > maxRaces {
		w.last = w.busyError(g)
		return g, stepSleep, nil
	}
	return g, how, nil
}

// afterBusy records why the lock was not granted, and returns the next step.
func (w *waiter) afterBusy(g leasetable.Grant) step {
	w.last, w.races = w.busyError(g), 0
	w.entry.NoteBusy(g)
	if g.Token != w.token && !w.client.waiters.Listening() {
		w.pause = newPause() // the lock changes hands, so this waiter may soon be the head
	}
	w.ahead, w.remaining, w.token = g.Ahead, g.Remaining, g.Token
	switch {
	case w.ahead > 0 || w.remaining > 0:
		w.blockedSince = time.Time{}
	case w.blockedSince.IsZero():
		w.blockedSince = time.Now()
	}
	if !w.entry.Row().Joined() {
		w.awaitingHandoff = g.Holder == w.cfg.holder && !w.handoffWaited && w.cfg.plain()
		// A ticket that was invalid at once is replaced only after a pause.
		if !w.awaitingHandoff && !w.ticketDrawn {
			return stepJoinQueue
		}
	}
	return stepSleep
}

// drawTicket draws a ticket, and returns the next step.
func (w *waiter) drawTicket(ctx context.Context) (step, error) {
	p, err := w.entry.DrawTicket(ctx)
	if err != nil {
		return stepSleep, err
	}
	w.failingSince = time.Time{}
	w.ticketDrawn = true
	w.ahead, w.remaining = p.Ahead, p.Remaining
	w.facts.sawAhead(p.Ahead)
	switch {
	case p.Ahead > 1: // a release will see our ticket
		return stepSleep, nil
	case p.Free && p.Ahead == 0:
		return stepAcquireFast, nil
	}
	return stepAcquireFull, nil // the holder may have released without seeing our ticket
}

// recordFailure records a failed attempt, and returns an error if that ends the wait.
func (w *waiter) recordFailure(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil, errors.Is(err, ErrClosed):
		return w.giveUp(ctx)
	case !errors.Is(err, ErrUnavailable):
		return err
	}
	w.failingSince = w.entry.Fail(err)
	if time.Since(w.failingSince) > timing.OutagePatience {
		return w.outageError(err)
	}
	w.last = err
	return nil
}

// outageError returns the error of a call that the server did not answer for timing.OutagePatience.
func (w *waiter) outageError(err error) error {
	return &WaitError{Name: w.name, Waited: time.Since(w.began), Cause: err, Last: w.last}
}

// sleep waits until another attempt is worthwhile, or the lock is handed off.
func (w *waiter) sleep(ctx context.Context) (g leasetable.Grant, next step, err error) {
	timer := time.NewTimer(w.sleepTime())
	defer timer.Stop()
	w.ticketDrawn = false
	w.observeWait(ctx)
	// More than one case may be ready. Any order is safe, because leaveWaitlist revokes a grant
	// that was handed off together with the end of ctx, and a wake-up between the attempt and this
	// select is buffered.
	select {
	case got := <-w.entry.Handed:
		g, err := w.checkGrant(w.id, *got)
		w.entry.EndHandoff(w.id)
		w.facts.handedOff, w.facts.blocker = err == nil, got.Released
		return g, stepAcquireFull, err
	case <-w.entry.Woken:
		w.pause, w.awaitingHandoff, w.handoffWaited = newPause(), false, true
		return g, stepAcquireFast, nil
	case <-timer.C:
		if w.awaitingHandoff {
			w.awaitingHandoff, w.handoffWaited = false, true
			if !w.entry.Row().Joined() {
				return g, stepJoinQueue, nil
			}
		}
		if held := w.entry.Held(); w.untilExpiry && held > 0 { // renewed, as a refresh has seen
			w.remaining = held
			return g, stepSleep, nil
		}
		return g, stepAcquireFull, nil
	case err := <-w.entry.Outage: // it arrived while another entry was the head
		return g, stepSleep, err
	case <-ctx.Done():
		return g, stepSleep, ctx.Err()
	case <-w.client.closing:
		return g, stepSleep, ErrClosed
	}
}

// sleepTime returns how long to sleep without a wake-up.
func (w *waiter) sleepTime() time.Duration {
	w.untilExpiry = false
	switch {
	case w.awaitingHandoff:
		return timing.HandoffWait
	case w.entry.Row().InOverflow() && w.failingSince.IsZero() && !w.cfg.barging:
		return timing.QuietPause // the refresher looks
	}
	w.pause.First = timing.FirstPause
	switch {
	case !w.failingSince.IsZero() && w.entry.Row().InOverflow(): // a fleet comes back little by little
		w.pause.Max = timing.MaxReconnect
	case !w.failingSince.IsZero():
		w.pause.Max = timing.MaxPause
	case !w.blockedSince.IsZero():
		// A guarded transaction holds the row of a lock that this waiter may acquire. Because its
		// end sends no notification, attempts are frequent, and late by about an eighth of its
		// duration.
		w.pause.Max = min(max(time.Since(w.blockedSince)/8, 2*timing.FirstPause), timing.MaxPause)
	case w.client.waiters.Listening() && w.entry.Row().Joined() && !w.cfg.barging && (w.remaining > 0 || w.ahead > 0):
		// A release that did not see our ticket sent no notification, so the first attempt is soon,
		// after the waiters ahead had time to acquire, and the next ones are less and less
		// frequent.
		w.pause.Max = timing.QuietPause
		w.pause.First *= time.Duration(1 + min(w.ahead, 20))
	default:
		w.pause.Max = timing.MaxPause
	}
	d := w.pause.Next()
	switch {
	case w.remaining > 0: // waiters ahead try a little earlier
		expiry := w.remaining + random.N(timing.ExpirySpread) + time.Duration(min(w.ahead, 20))*timing.HeadStep
		w.untilExpiry = expiry <= d
		d = min(d, expiry)
	case w.ahead > 0: // free, but the waiter ahead may be dead
		d = min(d, timing.HeadWait+random.N(timing.HeadWait))
	}
	return d
}
