package pglock_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/observe"
)

// TestReportSetsTheOutcome of an error, and does nothing without an observer.
func TestReportSetsTheOutcome(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		var r locktest.Results
		c := f.open(r.Observer())
		for _, err := range []error{pglock.ErrUnavailable, pglock.ErrClosed, context.DeadlineExceeded, errors.New("another"), nil} {
			c.Report(t.Context(), observe.ResultEvent{Kind: "mine", Name: "n", Err: err})
		}
		if _, got := r.Of("mine"); got != "unavailable closed timeout failed" {
			t.Error(got)
		}
		if last, ok := r.Announced("mine"); !ok || last.Name != "n" {
			t.Errorf("%+v, %v", last, ok)
		}
		f.open().Report(t.Context(), observe.ResultEvent{Kind: "mine"})
	})
}

// roundTrip is that of slow.
const roundTrip = 10 * time.Millisecond

// slow returns the fake as seen through a network that takes some time.
func (f fake) slow() fake {
	n, far := f.proxied()
	n.Delay(roundTrip)
	return far
}

// TestObserverOfAPair: one acquire and one release, and the statements that carried them.
func TestObserverOfAPair(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		r := &recorder{}
		c := f.slow().open(pglock.WithObserver(r.hooks()), pglock.WithObserver(observe.Hooks{}), pglock.WithHolder("me"))
		began := time.Now()
		l := acquire(t, c, "n")
		granted := events[observe.AcquireEvent](r) // before the call returns, so that a program's last lease is counted
		release(t, l)
		released := events[observe.ReleaseEvent](r)
		if want := []observe.AcquireEvent{{
			Name: "n", Token: l.Token(), Holder: "me", Outcome: observe.OutcomeGranted, Began: began, Waited: 2 * roundTrip, Attempts: 1,
		}}; !slices.Equal(granted, want) {
			t.Errorf("the grant: %+v, want %+v", granted, want)
		}
		if want := []observe.ReleaseEvent{{Name: "n", Token: l.Token(), Holder: "me", Held: roundTrip, Duration: roundTrip}}; !slices.Equal(released, want) {
			t.Errorf("the release: %+v, want %+v", released, want)
		}
		if got, want := await[observe.BatchEvent](t, r, 2), []observe.BatchEvent{
			{Operation: observe.OperationAcquire, Size: 1, Duration: 2 * roundTrip}, {Operation: observe.OperationRelease, Size: 1, Duration: roundTrip},
		}; !slices.Equal(got, want) {
			t.Errorf("the batches: %+v, want %+v", got, want)
		}
		if n := len(events[any](r)); n != 4 {
			t.Errorf("%d events: %+v", n, events[any](r))
		}
	})
}

// TestObserverOfCallsWithoutAGrant: each ends with its outcome and its error.
func TestObserverOfCallsWithoutAGrant(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		r := &recorder{}
		held := try(t, f.open(pglock.WithHolder("another")), "n")
		c := f.openUnclosed(pglock.WithObserver(r.hooks()), pglock.WithMaxConns(2))

		short, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		waiting, giveUp := context.WithCancel(t.Context())
		_, busy := c.TryAcquire(t.Context(), "n")
		_, timeout := c.Acquire(short, "n")
		ends := make(chan error)
		go func() { _, err := c.Acquire(waiting, "n"); ends <- err }()
		await[observe.WaitEvent](t, r, 2)
		giveUp()
		canceled := <-ends
		go func() { _, err := c.Acquire(t.Context(), "n"); ends <- err }()
		waits := await[observe.WaitEvent](t, r, 3)
		must(t, c.Close(t.Context()))
		closed := <-ends
		_, _ = c.Acquire(t.Context(), "n") // no event: the client is closed
		_, _ = c.Acquire(t.Context(), "")  // no event: the name is invalid

		for i, w := range waits {
			if w.Name != "n" || w.Holder != "another" || w.Token != held.Token() || w.Remaining <= 0 || w.Ahead != 0 {
				t.Errorf("wait %d: %+v", i, w)
			}
		}
		ended := await[observe.AcquireEvent](t, r, 4)
		if len(ended) != 4 {
			t.Fatalf("%d calls have ended: %+v", len(ended), ended)
		}
		for i, want := range []struct {
			outcome observe.Outcome
			err     error
		}{
			{observe.OutcomeBusy, busy},
			{observe.OutcomeTimeout, timeout},
			{observe.OutcomeCanceled, canceled},
			{observe.OutcomeClosed, closed},
		} {
			got := ended[i]
			if want.err == nil || !errors.Is(got.Err, want.err) || got.Outcome != want.outcome || got.Token != 0 || got.Blocker != held.Token() ||
				got.Try != (i == 0) || got.Queued != (i > 0) || got.Attempts < 1 {
				t.Errorf("%s, %v: %+v", want.outcome, want.err, got)
			}
		}
	})
}

// TestObserverOfAHandoff: the release, the hand-off and the grant tell the same. A release that
// meets an attempt of the waiter hands nothing off, and says so.
func TestObserverOfAHandoff(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		for round := 0; ; round++ {
			r := &recorder{}
			c := f.open(pglock.WithObserver(r.hooks()))
			held := try(t, c, "n")
			got := make(chan *pglock.Lease, 2)
			for i := range 2 {
				go func() { got <- acquire(t, c, "n") }()
				await[observe.WaitEvent](t, r, i+1)
			}
			rest(t, time.Millisecond) // of the bubble, so that both have waited
			release(t, held)
			release(t, next(t, got))
			release(t, next(t, got))

			waits, granted := events[observe.WaitEvent](r), events[observe.AcquireEvent](r)
			ended := await[observe.ReleaseEvent](t, r, 3)
			if len(waits) != 2 || waits[0].Ahead != 0 || waits[1].Ahead != 1 || len(granted) != 3 {
				t.Fatalf("the waits: %+v; the grants: %+v", waits, granted)
			}
			count := 0
			for i, after := range granted[1:] {
				before := granted[i]
				if !after.Queued || after.Ahead != i || after.Waited <= 0 || after.HandedOff != ended[i].HandedOff || ended[i].Token != before.Token {
					t.Errorf("grant %d: %+v, after %+v", i, after, ended[i])
				}
				if !after.HandedOff {
					continue
				}
				count++
				h := await[observe.HandoffEvent](t, r, count)[count-1]
				if h.Name != "n" || h.Released != before.Token || h.Token != after.Token || h.Holder != after.Holder || after.Blocker != before.Token {
					t.Errorf("hand-off %d: %+v to %+v", count, h, after)
				}
			}
			if len(events[observe.HandoffEvent](r)) != count || ended[2].HandedOff {
				t.Errorf("%d hand-offs of %d; the last release: %+v", len(events[observe.HandoffEvent](r)), count, ended[2])
			}
			if count > 0 || t.Failed() {
				return
			}
			if round == 20 {
				t.Fatal("no release handed the lock off")
			}
		}
	})
}

// TestObserverOfALeaseThatMoves: each process is told that it has a lease, and that it has none.
func TestObserverOfALeaseThatMoves(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		first, second := &recorder{}, &recorder{}
		far := f.slow()
		from, to := far.open(pglock.WithObserver(first.hooks())), far.open(pglock.WithObserver(second.hooks()), pglock.WithHolder("me"))
		l := acquire(t, from, "n")
		fence, err := l.HandOver()
		must(t, err)
		if e := await[observe.ReleaseEvent](t, first, 1)[0]; e.Name != "n" || e.Token != l.Token() || !e.HandedOver || e.Err != nil || e.Held <= 0 {
			t.Errorf("the hand-over: %+v", e)
		}
		adopted, err := to.Adopt(t.Context(), fence)
		must(t, err)
		got := events[observe.AcquireEvent](second)
		if len(got) != 1 || got[0].Name != "n" || got[0].Token != l.Token() || !got[0].Adopted || got[0].Holder != "me" || got[0].Outcome != observe.OutcomeGranted || got[0].Waited <= 0 {
			t.Errorf("the adoption: %+v", got)
		}
		release(t, adopted)
		if e := await[observe.ReleaseEvent](t, second, 1)[0]; e.HandedOver || e.Token != l.Token() {
			t.Errorf("the release: %+v", e)
		}
		if len(events[observe.AcquireEvent](first)) != 1 || len(events[observe.ReleaseEvent](first)) != 1 {
			t.Errorf("the first client's events: %+v", events[any](first))
		}
	})
}

// TestObserverOfRenewals: two thirds of the TTL remain at each, unless the server stalls.
func TestObserverOfRenewals(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		r := &recorder{}
		c := f.slow().open(pglock.WithObserver(r.hooks()))
		const ttl = 3 * time.Second
		l := try(t, c, "n", pglock.WithTTL(ttl))
		renewals := await[observe.RenewalEvent](t, r, 2)
		must(t, l.Extend(t.Context(), ttl))
		renewals = append(renewals[:2], await[observe.RenewalEvent](t, r, 3)[2])
		for i, e := range renewals {
			if e.Name != "n" || e.Token != l.Token() || e.Err != nil || e.Duration != roundTrip || e.TTLRemaining <= 0.6 || e.TTLRemaining > 1 {
				t.Errorf("renewal %d: %+v", i, e)
			}
		}
		if s := renewals[0].TTLRemaining; s > 0.71 {
			t.Errorf("%v of the TTL remained: a renewal begins when 0.7 do at the most", s)
		}
		for _, b := range await[observe.BatchEvent](t, r, 4)[1:] {
			if b.Operation != observe.OperationRenew || b.Size != 1 {
				t.Errorf("batch: %+v", b)
			}
		}
		release(t, l)
	})
}

// TestObserverOfBatches: calls that gather are one batch.
func TestObserverOfBatches(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		const calls = 40
		r := &recorder{}
		c := f.slow().open(pglock.WithObserver(r.hooks()), pglock.WithBatches(16, true))
		var wg sync.WaitGroup
		for i := range calls {
			wg.Go(func() { release(t, acquire(t, c, string(rune('a'+i)))) })
		}
		wg.Wait()
		sum := func() map[observe.Operation]int {
			sizes := map[observe.Operation]int{}
			for _, b := range events[observe.BatchEvent](r) {
				sizes[b.Operation] += b.Size
			}
			return sizes
		}
		pgtest.Eventually(t, "all are in a batch", func() bool {
			got := sum()
			return got[observe.OperationAcquire] >= calls && got[observe.OperationRelease] >= calls
		})
		if largest := slices.MaxFunc(events[observe.BatchEvent](r), func(a, b observe.BatchEvent) int { return a.Size - b.Size }); largest.Size < 2 || largest.Size > 16 {
			t.Errorf("the largest batch: %+v", largest)
		}
	})
}

// TestASlowObserverLosesNoLease: the renewals that it is told of have been recorded, and the next ones
// are planned, before it is called.
func TestASlowObserverLosesNoLease(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		const leases, ttl = 20, 3 * time.Second
		var told atomic.Int32
		r, stop := &recorder{}, make(chan struct{})
		slow := observe.Hooks{Renewal: func(context.Context, observe.RenewalEvent) {
			if told.Add(1) == 1 {
				<-stop
			}
		}}
		c := f.open(pglock.WithObserver(r.hooks()), pglock.WithObserver(slow), pglock.WithTTL(ttl), pglock.WithBatches(4, false))
		all := make([]*pglock.Lease, leases)
		for i := range all {
			all[i] = try(t, c, string(rune('a'+i)))
		}
		await[observe.RenewalEvent](t, r, 4*leases) // for longer than the TTL
		for _, l := range all {
			if l.Err() != nil {
				t.Errorf("%q: %v", l.Name(), l.Err())
			}
			release(t, l)
		}
		close(stop)
		pgtest.Eventually(t, "it receives the rest", func() bool {
			return int(told.Load()) == len(events[observe.RenewalEvent](r))
		})
	})
}

// TestObserverOfLosses: by a deadline, by another holder, by WithMaxHold, and one that the release
// finds out.
func TestObserverOfLosses(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		r := &recorder{}
		c := f.open(pglock.WithObserver(r.hooks()), pglock.WithHolder("me"), pglock.WithLogger(nil))
		expired := try(t, c, "expires", pglock.WithTTL(time.Second), pglock.WithRenewEvery(0))
		ends(t, "its deadline", expired.Done())
		stolen := try(t, c, "stolen", pglock.WithTTL(3*time.Second))
		f.steal("stolen")
		ends(t, "its next renewal", stolen.Done())
		long := try(t, c, "long", pglock.WithTTL(2*time.Second), pglock.WithMaxHold(time.Millisecond))
		ends(t, "the end of its time", long.Done())
		late := try(t, c, "late")
		f.steal("late")
		fails(t, "Release", late.Release(t.Context()), pglock.ErrLost)

		losses := await[observe.LossEvent](t, r, 3)
		for i, want := range []struct {
			lease  *pglock.Lease
			reason observe.LossReason
		}{{expired, observe.LossExpired}, {stolen, observe.LossEnded}, {long, observe.LossMaxHold}} {
			e := losses[i]
			if e.Name != want.lease.Name() || e.Token != want.lease.Token() || e.Holder != "me" || e.Reason != want.reason || e.Held <= 0 || !errors.Is(want.lease.Err(), e.Err) {
				t.Errorf("%s: %+v", want.reason, e)
			}
		}
		if e := await[observe.ReleaseEvent](t, r, 1)[0]; e.Name != "late" || !errors.Is(e.Err, pglock.ErrLost) {
			t.Errorf("the release: %+v", e)
		}
		failed := slices.DeleteFunc(events[observe.RenewalEvent](r), func(e observe.RenewalEvent) bool { return e.Err == nil })
		if len(failed) != 1 || failed[0].Name != "stolen" || !errors.Is(failed[0].Err, pglock.ErrLost) {
			t.Errorf("renewals that failed: %+v", failed)
		}
		if n := len(events[observe.LossEvent](r)); n != 3 {
			t.Errorf("%d losses", n)
		}
	})
}

// recorder records all events.
type recorder struct {
	mu  sync.Mutex
	all []any
}

func record[E any](r *recorder) func(context.Context, E) {
	return func(_ context.Context, e E) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.all = append(r.all, e)
	}
}

func (r *recorder) hooks() observe.Hooks {
	return observe.Hooks{
		Wait: record[observe.WaitEvent](r), Acquire: record[observe.AcquireEvent](r), Handoff: record[observe.HandoffEvent](r),
		Renewal: record[observe.RenewalEvent](r), Loss: record[observe.LossEvent](r), Release: record[observe.ReleaseEvent](r),
		Batch: record[observe.BatchEvent](r),
	}
}

// events returns the events of a type so far.
func events[E any](r *recorder) (found []E) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.all {
		if e, ok := e.(E); ok {
			found = append(found, e)
		}
	}
	return found
}

// await waits until there are n events of a type, and returns them.
func await[E any](t *testing.T, r *recorder, n int) []E {
	t.Helper()
	pgtest.Eventually(t, "the events arrive", func() bool { return len(events[E](r)) >= n })
	return events[E](r)
}

// TestObserverSeesNoPruning: the pruner's lock is not the application's.
func TestObserverSeesNoPruning(t *testing.T) {
	t.Parallel()
	f, r := newFixture(t), &recorder{}
	c := f.open(pglock.WithObserver(r.hooks()), pglock.WithPruneEvery(10*time.Millisecond, time.Minute))
	until(f, "the pruner has held its lock", 1, "SELECT count(*) FROM pglock.distributed_locks WHERE name = 'pglock:prune'")
	release(t, acquire(t, c, "n"))
	await[observe.ReleaseEvent](t, r, 1)
	for _, e := range events[observe.AcquireEvent](r) {
		if e.Name != "n" {
			t.Errorf("%+v", e)
		}
	}
	if n := len(events[observe.ReleaseEvent](r)); n != 1 {
		t.Errorf("%d releases", n)
	}
}
