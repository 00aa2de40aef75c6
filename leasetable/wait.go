package leasetable

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"
)

const (
	firstPause = 4 * time.Millisecond
	maxPause   = 250 * time.Millisecond
)

// backoff spreads out repeated attempts: pauses double from firstPause to
// maxPause, each drawn between half and one and a half of that, so that those
// who began together do not go on together.
type backoff struct{ pause time.Duration }

// next returns the next pause. A holder's lease that ends sooner shortens it to
// a little after that end.
func (b *backoff) next(remaining time.Duration) time.Duration {
	b.pause = min(max(2*b.pause, firstPause), maxPause)
	d := b.pause/2 + rand.N(b.pause)
	if remaining > 0 && remaining < d {
		d = remaining + rand.N(firstPause)
	}
	return d
}

// wait asks until the lock is granted or ctx ends. Between two questions it holds
// nothing but a timer. Asking for a lock that is held reads one row and writes none.
func (a *acquisition) wait(ctx context.Context) (grant, error) {
	turn := a.client.waiting.join(a.name)
	defer a.client.waiting.leave(turn)
	select {
	case <-turn.first:
		return a.poll(ctx, turn)
	case <-ctx.Done():
		return grant{}, a.gaveUp(ctx, nil)
	case <-a.client.closing:
		return grant{}, a.gaveUp(ctx, nil)
	}
}

// poll asks again and again, first in its line.
func (a *acquisition) poll(ctx context.Context, turn *turn) (grant, error) {
	var pause backoff
	var last error
	var failingSince time.Time
	for {
		g, err := a.ask(ctx)
		switch {
		case ctx.Err() != nil && (err != nil || g.outcome != granted), errors.Is(err, ErrClosed):
			return g, a.gaveUp(ctx, last)
		case err != nil && !errors.Is(err, ErrUnavailable):
			return g, err
		case err != nil:
			if failingSince.IsZero() {
				failingSince = time.Now()
			}
			if time.Since(failingSince) > outagePatience {
				return g, &WaitError{Name: a.name, Waited: time.Since(a.begun), Cause: err, Last: last}
			}
			last = err
		case g.outcome == granted:
			return g, nil
		case g.outcome == raced, g.outcome == spent:
			failingSince = time.Time{}
			continue
		default:
			failingSince = time.Time{}
			last = a.busy(g)
		}
		timer := time.NewTimer(pause.next(g.remaining))
		// A release that falls between the question and here is kept in freed.
		select {
		case <-timer.C:
		case <-turn.freed:
			timer.Stop()
			pause = backoff{}
		case <-ctx.Done():
			timer.Stop()
			return g, a.gaveUp(ctx, last)
		case <-a.client.closing:
			timer.Stop()
			return g, a.gaveUp(ctx, last)
		}
	}
}
