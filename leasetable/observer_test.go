package leasetable_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/leasetable"
)

// recorder is an Observer that records all events.
type recorder struct {
	leasetable.NopObserver
	mu  sync.Mutex
	all []any
}

func (r *recorder) record(e any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, e)
}

func (r *recorder) ObserveWait(_ context.Context, e leasetable.WaitEvent)       { r.record(e) }
func (r *recorder) ObserveAcquire(_ context.Context, e leasetable.AcquireEvent) { r.record(e) }
func (r *recorder) ObserveHandoff(_ context.Context, e leasetable.HandoffEvent) { r.record(e) }
func (r *recorder) ObserveRenewal(_ context.Context, e leasetable.RenewalEvent) { r.record(e) }
func (r *recorder) ObserveLoss(_ context.Context, e leasetable.LossEvent)       { r.record(e) }
func (r *recorder) ObserveRelease(_ context.Context, e leasetable.ReleaseEvent) { r.record(e) }
func (r *recorder) ObserveBatch(_ context.Context, e leasetable.BatchEvent)     { r.record(e) }

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
	pgtest.Eventually(t, 20*time.Second, "the events arrive", func() bool { return len(events[E](r)) >= n })
	return events[E](r)
}

// TestObserverOfAPair: one acquire and one release, and the statements that carried them.
func TestObserverOfAPair(t *testing.T) {
	t.Parallel()
	f, r := newFixture(t), &recorder{}
	c := f.open(leasetable.WithObserver(r), leasetable.WithObserver(nil), leasetable.WithHolder("me"))
	began := time.Now()
	l := acquire(t, c, "n")
	granted := events[leasetable.AcquireEvent](r) // at once
	release(t, l)
	took := time.Since(began)

	if len(granted) != 1 {
		t.Fatalf("%d grants: %+v", len(granted), granted)
	}
	g := granted[0]
	if g.Name != "n" || g.Token != l.Token() || g.Holder != "me" || g.Outcome != leasetable.OutcomeGranted || g.Err != nil ||
		g.Attempts != 1 || g.Try || g.Queued || g.HandedOff || g.Ahead != 0 || g.Behind != 0 ||
		g.Waited <= 0 || g.Waited > took || g.Began.Before(began) {
		t.Errorf("the grant: %+v", g)
	}
	s := await[leasetable.ReleaseEvent](t, r, 1)[0]
	if s.Name != "n" || s.Token != l.Token() || s.Holder != "me" || s.Err != nil || s.HandedOff || s.Again ||
		s.Held <= 0 || s.Duration <= 0 || s.Held+s.Duration > took {
		t.Errorf("the release, of %v in all: %+v", took, s)
	}
	batches := await[leasetable.BatchEvent](t, r, 2)
	for i, op := range []leasetable.Operation{leasetable.OperationAcquire, leasetable.OperationRelease} {
		if b := batches[i]; b.Operation != op || b.Size != 1 || b.Err != nil || b.Duration <= 0 || b.Duration > took {
			t.Errorf("batch %d: %+v", i, b)
		}
	}
	if n := len(events[any](r)); n != 4 {
		t.Errorf("%d events: %+v", n, events[any](r))
	}
}

// TestObserverOfCallsWithoutAGrant: each ends with its outcome and its error.
func TestObserverOfCallsWithoutAGrant(t *testing.T) {
	t.Parallel()
	f, r := newFixture(t), &recorder{}
	held := try(t, f.open(leasetable.WithHolder("another")), "n")
	c := f.openUnclosed(leasetable.WithObserver(r), leasetable.WithMaxConns(2))

	short, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	waiting, giveUp := context.WithCancel(t.Context())
	_, busy := c.TryAcquire(t.Context(), "n")
	_, timeout := c.Acquire(short, "n")
	ends := make(chan error)
	go func() { _, err := c.Acquire(waiting, "n"); ends <- err }()
	await[leasetable.WaitEvent](t, r, 2)
	giveUp()
	canceled := <-ends
	go func() { _, err := c.Acquire(t.Context(), "n"); ends <- err }()
	waits := await[leasetable.WaitEvent](t, r, 3)
	if err := c.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	closed := <-ends
	_, _ = c.Acquire(t.Context(), "n") // no event: the client is closed
	_, _ = c.Acquire(t.Context(), "")  // no event: the name is invalid

	for i, w := range waits {
		if w.Name != "n" || w.Holder != "another" || w.Token != held.Token() || w.Remaining <= 0 || w.Ahead != 0 {
			t.Errorf("wait %d: %+v", i, w)
		}
	}
	ended := await[leasetable.AcquireEvent](t, r, 4)
	if len(ended) != 4 {
		t.Fatalf("%d calls have ended: %+v", len(ended), ended)
	}
	for i, want := range []struct {
		outcome leasetable.Outcome
		err     error
	}{
		{leasetable.OutcomeBusy, busy},
		{leasetable.OutcomeTimeout, timeout},
		{leasetable.OutcomeCanceled, canceled},
		{leasetable.OutcomeClosed, closed},
	} {
		got := ended[i]
		if want.err == nil || !errors.Is(got.Err, want.err) || got.Outcome != want.outcome || got.Token != 0 || got.Behind != held.Token() ||
			got.Try != (i == 0) || got.Queued != (i > 0) || got.Attempts < 1 {
			t.Errorf("%s, %v: %+v", want.outcome, want.err, got)
		}
	}
}

// TestObserverOfAHandoff: a waiter of the same process, and one behind it.
func TestObserverOfAHandoff(t *testing.T) {
	t.Parallel()
	f, r := newFixture(t), &recorder{}
	c := f.open(leasetable.WithObserver(r))
	held := try(t, c, "n")
	got := make(chan *leasetable.Lease, 2)
	for i := range 2 {
		go func() { got <- acquire(t, c, "n") }()
		await[leasetable.WaitEvent](t, r, i+1)
		pgtest.Eventually(t, 10*time.Second, "it rests in the queue", func() bool { return leasetable.HeadWaits(c, "n") })
	}
	release(t, held)
	first := <-got
	release(t, first)
	second := <-got
	release(t, second)

	waits, granted := events[leasetable.WaitEvent](r), events[leasetable.AcquireEvent](r)
	if len(waits) != 2 || waits[0].Ahead != 0 || waits[1].Ahead != 1 {
		t.Errorf("the waits: %+v", waits)
	}
	if len(granted) != 3 {
		t.Fatalf("the grants: %+v", granted)
	}
	handed := await[leasetable.HandoffEvent](t, r, 2)
	for i, h := range handed {
		before, after := granted[i].Token, granted[i+1]
		if h.Name != "n" || h.Released != before || h.Token != after.Token || h.Holder != after.Holder {
			t.Errorf("hand-off %d: %+v", i, h)
		}
		if !after.HandedOff || !after.Queued || after.Behind != before || after.Ahead != i || after.Waited <= 0 {
			t.Errorf("the grant of hand-off %d: %+v", i, after)
		}
	}
	ended := await[leasetable.ReleaseEvent](t, r, 3)
	if !ended[0].HandedOff || !ended[1].HandedOff || ended[2].HandedOff {
		t.Errorf("the releases: %+v", ended)
	}
}

// TestObserverOfRenewals: two thirds of the TTL remain at each, unless the server stalls.
func TestObserverOfRenewals(t *testing.T) {
	t.Parallel()
	f, r := newFixture(t), &recorder{}
	c := f.open(leasetable.WithObserver(r))
	const ttl = 3 * time.Second
	l := try(t, c, "n", leasetable.WithTTL(ttl))
	renewals := await[leasetable.RenewalEvent](t, r, 2)
	if err := l.Extend(t.Context(), ttl); err != nil {
		t.Fatal(err)
	}
	renewals = append(renewals[:2], await[leasetable.RenewalEvent](t, r, 3)[2])
	for i, e := range renewals {
		if e.Name != "n" || e.Token != l.Token() || e.Err != nil || e.Duration <= 0 || e.Share <= 0.2 || e.Share > 1 {
			t.Errorf("renewal %d: %+v", i, e)
		}
	}
	if s := renewals[0].Share; s > 0.71 {
		t.Errorf("%v of the TTL remained: a renewal begins when 0.7 do at the most", s)
	}
	for _, b := range await[leasetable.BatchEvent](t, r, 4)[1:] {
		if b.Operation != leasetable.OperationRenew || b.Size != 1 {
			t.Errorf("batch: %+v", b)
		}
	}
	release(t, l)
}

// TestObserverOfLosses: by a deadline, by another holder, and one that the release finds out.
func TestObserverOfLosses(t *testing.T) {
	t.Parallel()
	f, r := newFixture(t), &recorder{}
	c := f.open(leasetable.WithObserver(r), leasetable.WithHolder("me"))
	expired := try(t, c, "expires", leasetable.WithTTL(200*time.Millisecond), leasetable.WithoutRenewal())
	within(t, 20*time.Second, "its deadline", expired.Done())
	stolen := try(t, c, "stolen", leasetable.WithTTL(time.Second))
	f.sql("UPDATE pglock.distributed_locks SET token = pglock.next_fencing_token(), holder = 'thief' WHERE name = 'stolen'")
	within(t, 20*time.Second, "its next renewal", stolen.Done())
	late := try(t, c, "late")
	f.sql("UPDATE pglock.distributed_locks SET token = pglock.next_fencing_token(), holder = 'thief' WHERE name = 'late'")
	if err := late.Release(t.Context()); !errors.Is(err, leasetable.ErrLost) {
		t.Errorf("Release: %v", err)
	}

	losses := await[leasetable.LossEvent](t, r, 2)
	for i, want := range []struct {
		lease  *leasetable.Lease
		reason leasetable.LossReason
	}{{expired, leasetable.LossExpired}, {stolen, leasetable.LossEnded}} {
		e := losses[i]
		if e.Name != want.lease.Name() || e.Token != want.lease.Token() || e.Holder != "me" || e.Reason != want.reason || e.Held <= 0 || !errors.Is(want.lease.Err(), e.Err) {
			t.Errorf("%s: %+v", want.reason, e)
		}
	}
	if e := await[leasetable.ReleaseEvent](t, r, 1)[0]; e.Name != "late" || !errors.Is(e.Err, leasetable.ErrLost) {
		t.Errorf("the release: %+v", e)
	}
	failed := slices.DeleteFunc(events[leasetable.RenewalEvent](r), func(e leasetable.RenewalEvent) bool { return e.Err == nil })
	if len(failed) != 1 || failed[0].Name != "stolen" || !errors.Is(failed[0].Err, leasetable.ErrLost) {
		t.Errorf("renewals that failed: %+v", failed)
	}
	if n := len(events[leasetable.LossEvent](r)); n != 2 {
		t.Errorf("%d losses", n)
	}
}

// TestObserverOfBatches: calls that gather are one batch.
func TestObserverOfBatches(t *testing.T) {
	t.Parallel()
	const calls = 40
	f, r := newFixture(t), &recorder{}
	c := f.open(leasetable.WithObserver(r), leasetable.WithBatches(16, true))
	var wg sync.WaitGroup
	for i := range calls {
		wg.Go(func() { release(t, acquire(t, c, string(rune('a'+i)))) })
	}
	wg.Wait()
	sum := func() map[leasetable.Operation]int {
		sizes := map[leasetable.Operation]int{}
		for _, b := range events[leasetable.BatchEvent](r) {
			sizes[b.Operation] += b.Size
		}
		return sizes
	}
	pgtest.Eventually(t, 20*time.Second, "all are in a batch", func() bool {
		got := sum()
		return got[leasetable.OperationAcquire] >= calls && got[leasetable.OperationRelease] >= calls
	})
	if largest := slices.MaxFunc(events[leasetable.BatchEvent](r), func(a, b leasetable.BatchEvent) int { return a.Size - b.Size }); largest.Size < 2 || largest.Size > 16 {
		t.Errorf("the largest batch: %+v", largest)
	}
}

// TestObserverSeesNoPruning: the pruner's lock is not the application's.
func TestObserverSeesNoPruning(t *testing.T) {
	t.Parallel()
	f, r := newFixture(t), &recorder{}
	c := f.open(leasetable.WithObserver(r), leasetable.WithPruneEvery(10*time.Millisecond, time.Minute))
	pgtest.Eventually(t, 20*time.Second, "the pruner has held its lock", func() bool {
		return value[int](f, "SELECT count(*) FROM pglock.distributed_locks WHERE name = 'pglock:prune'") == 1
	})
	release(t, acquire(t, c, "n"))
	await[leasetable.ReleaseEvent](t, r, 1)
	for _, e := range events[leasetable.AcquireEvent](r) {
		if e.Name != "n" {
			t.Errorf("%+v", e)
		}
	}
	if n := len(events[leasetable.ReleaseEvent](r)); n != 1 {
		t.Errorf("%d releases", n)
	}
}
