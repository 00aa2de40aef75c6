package leasetable

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/pglock/pglock-go/fencing"
)

const (
	firstPause = 4 * time.Millisecond
	maxPause   = 250 * time.Millisecond

	// pollBound is the longest that a waiter relies on being notified.
	pollBound = time.Second

	// localPause is how long a waiter whose own process holds the lock waits for it to be
	// handed over before it takes a ticket.
	localPause = 10 * time.Millisecond
)

// backoff spreads out repeated attempts: pauses double from firstPause to
// a limit, maxPause by default, each drawn between half and one and a half of that, so
// that those who began together do not go on together.
type backoff struct{ pause, limit time.Duration }

// next returns the next pause. A holder's lease that ends sooner shortens it to
// a little after that end.
func (b *backoff) next(remaining time.Duration) time.Duration {
	b.pause = min(max(2*b.pause, firstPause), cmp.Or(b.limit, maxPause))
	d := b.pause/2 + rand.N(b.pause)
	if remaining > 0 && remaining < d {
		d = remaining + rand.N(firstPause)
	}
	return d
}

// waiter is an acquisition that waits. It holds nothing but its turn and a timer while it
// rests, and is woken
//
//   - by a notification, or by a release in this process: nudged;
//   - by a release in this process that hands it the lock: handed;
//   - when the holder's lease ends, if it is not renewed;
//   - after pollBound at the latest, much sooner where nobody listens for notifications.
//
// The row is the truth in any case: it asks, and waits again if the answer is no.
type waiter struct {
	*acquisition
	turn *turn

	ahead     int           // others before us, as far as is known
	remaining time.Duration // of the grant in the way; 0: free, and not ours to take
	token     fencing.Token // of that grant
	polite    bool          // our own process holds the lock: likely it will be handed over
	rested    bool          // and that was waited for
	pause     backoff

	last         error // what stood in the way
	failingSince time.Time
}

// wait asks until the lock is granted or ctx ends.
func (a *acquisition) wait(ctx context.Context) (grant, error) {
	if q := &a.client.waiting; q.beginAlone(a.name) {
		g, err := a.ask(ctx, a.ticket(0), false)
		q.endAlone(a.name)
		if err == nil && g.outcome == granted {
			return g, nil
		}
		return a.waitInLine(ctx, g, err)
	}
	return a.waitInLine(ctx, grant{}, nil)
}

// waitInLine is wait after a first answer, if there was one.
func (a *acquisition) waitInLine(ctx context.Context, first grant, failure error) (g grant, err error) {
	c := a.client
	t := c.waiting.join(a)
	defer func() {
		ticket := c.waiting.leave(t, err == nil)
		select {
		case got := <-t.handed: // with the end of ctx
			if got.err == nil || applied(got.err) {
				a.withdraw(a.request)
			}
		default:
		}
		c.returnTicket(a.name, ticket)
	}()
	w := &waiter{acquisition: a, turn: t}
	if failure != nil {
		if err := w.failed(ctx, failure); err != nil {
			return grant{}, err
		}
	} else if first.outcome == busy {
		w.last = a.busy(first)
	}
	select {
	case <-t.first:
		return w.run(ctx)
	case <-ctx.Done():
		return grant{}, a.gaveUp(ctx, w.last)
	case <-c.closing:
		return grant{}, a.gaveUp(ctx, w.last)
	}
}

// run is the waiting of who is first in line.
func (w *waiter) run(ctx context.Context) (grant, error) {
	next := w.begin()
	for {
		var g grant
		var err error
		switch next {
		case askShort, askLong:
			g, err = w.question(ctx, next == askLong)
		case takeTicket:
			next, err = w.lineUp(ctx)
		}
		switch {
		case err == nil && g.outcome == granted:
			return g, nil
		case err != nil:
			if err := w.failed(ctx, err); err != nil {
				return g, err
			}
			next = sleep
		case g.outcome == raced, g.outcome == spent:
			continue
		case g.outcome == busy:
			next = w.afterRefusal(g)
		case next == askShort || next == askLong: // reserved: nothing was asked
			next = sleep
		}
		if next != sleep {
			continue
		}
		if g, next, err = w.rest(ctx); err != nil || g.outcome == granted {
			return g, err
		}
	}
}

// begin returns the first step of who has become the first in line.
func (w *waiter) begin() step {
	q := &w.client.waiting
	q.mu.Lock()
	defer q.mu.Unlock()
	ln := w.turn.line
	switch {
	case w.turn.follows:
		w.polite = true
		return sleep
	case ln.ticket != 0: // of somebody before us who has left
		return askLong
	case ln.row != 0: // others were in the way lately
		return takeTicket
	case w.last != nil:
		return askLong
	}
	return askShort
}

// step is what a waiter does next.
type step int

const (
	sleep      step = iota
	askShort        // it is likely free
	askLong         // it is likely held
	takeTicket      // take a place in the queue on the server
)

// question asks once, unless the lock is just being handed over to us.
func (w *waiter) question(ctx context.Context, doubtful bool) (grant, error) {
	q := &w.client.waiting
	ticket, ok := q.ask(w.turn)
	if !ok {
		return grant{}, nil
	}
	g, err := w.ask(ctx, w.ticket(ticket), doubtful)
	used := err == nil && (g.outcome == granted || g.void) && !w.cfg.barging
	q.asked(w.turn, ticket, used)
	return g, err
}

// afterRefusal takes in why the lock was not granted.
func (w *waiter) afterRefusal(g grant) step {
	w.failingSince = time.Time{}
	w.last = w.busy(g)
	if g.token != w.token && !w.client.ears.listening() {
		w.pause = backoff{} // the lock moves: our turn may come soon
	}
	w.ahead, w.remaining, w.token = g.ahead, g.remaining, g.token
	if !w.turn.hasTicket() {
		w.polite = g.holder == w.cfg.holder && !w.rested
		if !w.polite {
			return takeTicket
		}
	}
	return sleep
}

// lineUp takes a ticket.
func (w *waiter) lineUp(ctx context.Context) (step, error) {
	p, err := w.client.lineUp(ctx, w.turn.line)
	if err != nil {
		return sleep, err
	}
	w.failingSince = time.Time{}
	w.ahead, w.remaining = p.ahead, p.remaining
	switch {
	case p.ahead > 1: // more than one turn comes before ours: a release will see us
		return sleep, nil
	case p.free && p.ahead == 0:
		return askShort, nil
	}
	return askLong, nil // the holder may have released meanwhile, and not seen us
}

// failed takes in a failure. It returns an error if that ends the waiting.
func (w *waiter) failed(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil, errors.Is(err, ErrClosed):
		return w.gaveUp(ctx, w.last)
	case !errors.Is(err, ErrUnavailable):
		return err
	case w.failingSince.IsZero():
		w.failingSince = time.Now()
	case time.Since(w.failingSince) > outagePatience:
		return &WaitError{Name: w.name, Waited: time.Since(w.begun), Cause: err, Last: w.last}
	}
	w.last = err
	return nil
}

// rest waits until asking again is worth it, or the lock is handed over.
func (w *waiter) rest(ctx context.Context) (g grant, next step, err error) {
	timer := time.NewTimer(w.patience())
	defer timer.Stop()
	// Several may be ready: what is handed over together with the end of ctx is given
	// back in wait. A nudge that falls between the question and here is kept.
	select {
	case got := <-w.turn.handed:
		g, err := w.settle(w.request, got)
		if err != nil {
			return grant{}, askLong, w.failed(ctx, err)
		}
		return g, askLong, nil
	case <-w.turn.nudged:
		w.pause, w.polite, w.rested = backoff{}, false, true
		return g, askShort, nil
	case <-timer.C:
		if w.polite {
			w.polite, w.rested = false, true
			if !w.turn.hasTicket() {
				return g, takeTicket, nil
			}
		}
		return g, askLong, nil
	case <-ctx.Done():
		return g, sleep, w.gaveUp(ctx, w.last)
	case <-w.client.closing:
		return g, sleep, w.gaveUp(ctx, w.last)
	}
}

// patience returns how long to rest if nothing wakes us.
func (w *waiter) patience() time.Duration {
	if w.polite {
		return localPause
	}
	var d time.Duration
	switch listening := w.client.ears.listening(); {
	case !w.failingSince.IsZero():
		d = w.pause.next(0)
	case listening && (w.remaining > 0 || w.ahead > 0):
		// A release that did not see our ticket yet woke nobody. So we look again soon,
		// after those before us had time for a turn, and then less and less often.
		w.pause.limit = pollBound * 2 / 3
		w.pause.pause = max(w.pause.pause, firstPause*time.Duration(1+min(w.ahead, 20))/2)
		d = w.pause.next(0)
	default:
		w.pause.limit = maxPause
		d = w.pause.next(0)
	}
	switch {
	case w.remaining > 0: // those before us ask a little earlier
		d = min(d, w.remaining+rand.N(20*time.Millisecond)+time.Duration(min(w.ahead, 20))*25*time.Millisecond)
	case w.ahead > 0: // free, and the one whose turn it is may be dead
		d = min(d, 200*time.Millisecond+rand.N(200*time.Millisecond))
	}
	return d
}
