package pglock

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/pglock/pglock-go/internal/backoff"
	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/timing"
	"github.com/pglock/pglock-go/leasetable"
	"github.com/pglock/pglock-go/pglock/inspect"
	"github.com/pglock/pglock-go/pglock/internal/link"
)

// Watch returns the state of the lock of that name, and then its new state after each change of its
// holder (by a grant, a release, a revocation or an expiry), of its labels, and of its Grants,
// but not after renewals. A name without a row is free, and only its Name is set.
//
// Each state is the newest one at the time of its read, and never older than the one before.
// Changes are not collected while the caller's loop runs, so compare tokens to find a holder that
// was missed.
//
// Where notifications arrive, a release, a revocation, an expiry and new labels are seen within
// milliseconds, and a grant to a waiter usually with the release before it. All other changes are
// seen within a second, because the client reads the row that often. Between two reads it holds
// only its listening connection. Watch continues through an outage of the server of up to 30 s.
// After that, and when ctx ends or the client is closed, the last pair has the error.
func (c *Client) Watch(ctx context.Context, name string) iter.Seq2[inspect.Lock, error] {
	return func(yield func(inspect.Lock, error) bool) {
		if err := CheckName(name); err != nil {
			yield(inspect.Lock{}, err)
			return
		}
		w := &watcher{client: c, name: name, woken: make(chan struct{}, 1)}
		c.watches.add(w)
		defer w.end()
		for first := true; ; first = false {
			changed, err := w.next(ctx, first)
			if err != nil {
				yield(inspect.Lock{}, err)
				return
			}
			if changed && !yield(w.last, nil) {
				return
			}
		}
	}
}

type watcher struct {
	client *Client
	name   string
	woken  chan struct{} // buffer of one

	last         inspect.Lock    // that was returned
	readAt       time.Time       // when the row was last read
	lastUntil    time.Time       // until when a row that is older than last is rejected
	pause        backoff.Backoff // between reads while the lock is free
	wait         time.Duration   // from readAt to the next read
	announcedAt  time.Time       // when Store.Watch last succeeded; zero: never
	failingSince time.Time       // zero: the server answers
}

// next waits until the row is due to be read, unless it is the first time, and reads it. It reports
// whether the holder has changed.
func (w *watcher) next(ctx context.Context, first bool) (changed bool, err error) {
	c := w.client
	if !first {
		// More than one case may be ready. Any order is safe, because one more read is harmless,
		// and finds that ctx or the client has ended.
		select {
		case <-w.woken:
		case <-time.After(time.Until(w.readAt.Add(w.wait))):
		case <-ctx.Done():
		case <-c.closing:
		}
	}
	if ctx.Err() != nil {
		return false, errs.Errorf("pglock: watch %q: %w", w.name, endOf(ctx))
	}
	if err := c.beginCall(); err != nil {
		return false, err
	}
	defer c.endCall()
	w.announce(ctx) // before the read, so that a release in between is not missed
	row, _, err := c.store.Get(ctx, w.name)
	now := time.Now()
	w.readAt = now
	if err != nil {
		return false, w.fail(ctx, err)
	}
	if !w.failingSince.IsZero() {
		w.failingSince, w.pause = time.Time{}, freePause()
	}
	k := row.Lock
	changed = first || !sameHolding(k, w.last) ||
		!slices.EqualFunc(k.Grants, w.last.Grants, func(a, b inspect.Grant) bool { return a.Token == b.Token && a.Exclusive == b.Exclusive })
	if changed && !first && w.older(k, now) {
		changed = false
	}
	if changed {
		w.last, w.pause = k, freePause()
		_, last := ends(k)
		w.lastUntil = now.Add(last + timing.StatementBound)
	}
	if next, _ := ends(k); k.Held() {
		w.wait = min(timing.PollBound, next+time.Millisecond)
	} else {
		w.wait = w.pause.Next()
	}
	return changed, nil
}

// ends returns when the first and the last of the live grants expire unless renewed.
func ends(k inspect.Lock) (first, last time.Duration) {
	if len(k.Grants) == 0 {
		return k.Remaining, k.Remaining
	}
	first = k.Grants[0].Remaining
	for _, g := range k.Grants {
		first, last = min(first, g.Remaining), max(last, g.Remaining)
	}
	return first, last
}

// freePause returns the pauses between reads while the lock is free, none of which exceeds
// PollBound.
func freePause() backoff.Backoff {
	return backoff.Backoff{First: timing.FirstPause, Max: timing.PollBound / 2}
}

// older reports whether k is older than the last state, as the row of a server that is being
// replaced. After an asynchronous failover that has lost the last grant, the older row is correct,
// so it is accepted once the lost grant has expired.
func (w *watcher) older(k inspect.Lock, now time.Time) bool {
	if k.Token == 0 || now.After(w.lastUntil) { // the row was pruned
		return false
	}
	return k.Token < w.last.Token || k.Token == w.last.Token && k.Version < w.last.Version
}

// announce makes releases notify this client, if it listens. Otherwise the row is polled.
func (w *watcher) announce(ctx context.Context) {
	c := w.client
	if c.cfg.pollOnly || time.Since(w.announcedAt) < timing.RefreshEvery {
		return
	}
	c.waiters.StartListener()
	if err := c.store.Watch(ctx, w.name, c.watches.channel()); err == nil {
		w.announcedAt = time.Now()
	}
}

// fail handles a failed read, and returns an error if that ends the iteration.
func (w *watcher) fail(ctx context.Context, err error) error {
	op := fmt.Sprintf("watch %q", w.name)
	switch {
	case ctx.Err() != nil, errors.Is(err, ErrClosed), !link.Transient(err):
		return w.client.explainIn(ctx, op, err)
	case w.failingSince.IsZero():
		w.failingSince = time.Now()
		w.pause = newPause()
	case time.Since(w.failingSince) > timing.OutagePatience:
		return w.client.store.Explain(op, err)
	}
	w.wait = w.pause.Next()
	return nil
}

// end ends the notifications of the name, unless another Watch of this client needs them. A row
// that can't be deleted expires.
func (w *watcher) end() {
	c := w.client
	if last := c.watches.remove(w); !last || w.announcedAt.IsZero() || c.beginRelease() != nil {
		return
	}
	defer c.endCall()
	c.background(timing.StatementBound, func(ctx context.Context) {
		_ = c.store.DeleteRows(ctx, []leasetable.Ticket{{Client: c.watches.channel(), Names: []string{w.name}, Number: leasetable.AnyTicket}})
	})
}

// watches has the running calls of Watch by name.
type watches struct {
	client *Client

	mu     sync.Mutex // guards byName
	byName map[string]map[*watcher]struct{}
}

func (s *watches) add(w *watcher) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byName == nil {
		s.byName = map[string]map[*watcher]struct{}{}
	}
	if s.byName[w.name] == nil {
		s.byName[w.name] = map[*watcher]struct{}{}
	}
	s.byName[w.name][w] = struct{}{}
}

// remove removes w, and reports whether it was the last one of its name.
func (s *watches) remove(w *watcher) (last bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.byName[w.name], w)
	if last = len(s.byName[w.name]) == 0; last {
		delete(s.byName, w.name)
	}
	return last
}

func (s *watches) any() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.byName) > 0
}

// stop ends the notifications of all names when the client closes and no watcher announces any
// more, because a loop over Watch may be busy then. Rows that can't be deleted before ctx ends
// expire.
func (s *watches) stop(ctx context.Context) {
	s.mu.Lock()
	names := slices.Collect(maps.Keys(s.byName))
	s.mu.Unlock()
	if len(names) == 0 || s.client.cfg.pollOnly {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, timing.StatementBound)
	defer cancel()
	_ = s.client.store.DeleteRows(ctx, []leasetable.Ticket{{Client: s.channel(), Names: names, Number: leasetable.AnyTicket}})
}

// channel is the client of the rows in lock_waiters that Watch writes.
func (s *watches) channel() string { return s.client.channel + "_watch" }

func (s *watches) wake(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for w := range s.byName[name] {
		signal(w.woken)
	}
}

func (s *watches) wakeAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, all := range s.byName {
		for w := range all {
			signal(w.woken)
		}
	}
}
