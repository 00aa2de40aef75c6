package pglock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
)

// text returns the form in which a fence goes to another process.
func text(t *testing.T, f fencing.Fence) string {
	t.Helper()
	b, err := f.MarshalText()
	must(t, err)
	return string(b)
}

// holderOf returns the holder that others see.
func holderOf(t *testing.T, c *pglock.Client, name string) pglock.BusyError {
	t.Helper()
	var busy *pglock.BusyError
	if l, err := c.TryAcquire(t.Context(), name, pglock.WithBarging()); err == nil {
		release(t, l)
		return pglock.BusyError{}
	} else if !errors.As(err, &busy) {
		t.Fatal(err)
	}
	return *busy
}

// TestAJobIsHandedOver to another client, as text, which renews, writes under guard, and hands it back. The
// first client can neither renew nor release meanwhile, even when it is closed.
func TestAJobIsHandedOver(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c, other := f.openUnclosed(pglock.WithHolder("first")), f.open(pglock.WithHolder("third"))
	adopter := f.open(pglock.WithHolder("adopter"), pglock.WithTTL(6*time.Second))
	adopt := func(c *pglock.Client, text string) (*pglock.Lease, error) {
		fence, err := fencing.ParseFence(text)
		must(t, err)
		return c.Adopt(t.Context(), fence)
	}
	l := try(t, c, "job", pglock.WithTTL(10*time.Second), pglock.WithLabels(map[string]string{"step": "1"}))
	fence, err := l.HandOver()
	if err != nil || fence != l.Fence() {
		t.Fatalf("HandOver: %v, %v", fence, err)
	}
	if l.Context().Err() == nil || !errors.Is(l.Err(), pglock.ErrReleased) || errors.Is(l.Err(), pglock.ErrLost) {
		t.Errorf("after HandOver: context %v, lease %v", l.Context().Err(), l.Err())
	}
	fails(t, "a second HandOver", second(l.HandOver()), pglock.ErrReleased)
	fails(t, "Extend after HandOver", l.Extend(t.Context(), time.Hour), pglock.ErrReleased)
	adopted, err := adopt(adopter, text(t, fence))
	must(t, err)
	release(t, l) // as a deferred call does
	check(t, c.Close(t.Context()))
	if busy := holderOf(t, other, "job"); busy.Holder != "adopter" || busy.Token != fence.Token {
		t.Errorf("others see %+v", busy)
	}
	// Let what the first client has promised pass. From then on the second one's renewals count.
	f.sql("UPDATE pglock.distributed_locks SET expires_at = clock_timestamp() + interval '6 s' WHERE name = 'job'")
	version := f.version("job")
	pgtest.Eventually(t, "renewals of the second client", func() bool { return f.version("job") > version+3 })
	check(t, adopted.Guard(t.Context(), begin(t, f)))
	if info := get(t, other, "job"); info.Labels["step"] != "1" {
		t.Errorf("labels: %v", info.Labels)
	}
	back, err := adopted.HandOver()
	if err != nil || back != fence {
		t.Fatalf("handed back: %v, %v", back, err)
	}
	l, err = adopt(other, text(t, back))
	must(t, err)
	release(t, adopted) // without effect
	if busy := holderOf(t, other, "job"); busy.Holder != "third" || l.Holder() != "third" || l.Token() != fence.Token {
		t.Errorf("others see %+v", busy)
	}
	fails(t, "a write after HandOver", adopted.Guard(t.Context(), begin(t, f)), fencing.ErrStale)
	release(t, l)
	fails(t, "a fence whose grant has ended", second(adopt(adopter, text(t, fence))), fencing.ErrStale)
}

// TestAdoptRefusesOtherGrants: those that have ended, in any way, those of another name or token,
// and those that can't be in this schema. The row stays as it is.
func TestAdoptRefusesOtherGrants(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.open()
	row := func(name string) string {
		return value[string](f, "SELECT coalesce((SELECT l::text FROM pglock.distributed_locks AS l WHERE name = $1), '')", name)
	}
	release(t, try(t, c, "held")) // so that the next token is not the first one
	held := try(t, c, "held")
	defer release(t, held)
	ended := func(name, spoil string) fencing.Fence {
		fence, err := try(t, c, name, pglock.WithTTL(time.Hour)).HandOver()
		must(t, err)
		f.sql("UPDATE pglock.distributed_locks SET "+spoil+" WHERE name = $1", name)
		return fence
	}
	expired := ended("expired", "expires_at = clock_timestamp() - interval '1 us'")
	released := ended("released", "holder = NULL, expires_at = '-infinity'")
	kept := ended("kept", "holder = NULL") // as after WithMinHold
	followed := ended("followed", "token = pglock.next_fencing_token()")
	newer := value[fencing.Token](f, "SELECT token FROM pglock.distributed_locks WHERE name = 'followed'")
	for what, tc := range map[string]struct {
		fence   fencing.Fence
		current fencing.Token
	}{
		"expired":      {expired, expired.Token},
		"released":     {released, released.Token},
		"kept":         {kept, kept.Token},
		"followed":     {followed, newer},
		"older token":  {fencing.Fence{Schema: f.schema, Name: "held", Token: held.Token() - 1}, held.Token()},
		"newer token":  {fencing.Fence{Schema: f.schema, Name: "held", Token: held.Token() + 1}, held.Token()},
		"another name": {fencing.Fence{Schema: f.schema, Name: "nobody", Token: held.Token()}, 0},
	} {
		before := row(tc.fence.Name)
		l, err := c.Adopt(t.Context(), tc.fence)
		var stale *fencing.StaleError
		if !errors.Is(err, fencing.ErrStale) || !errors.As(err, &stale) || stale.Current != tc.current || l != nil {
			t.Errorf("%s: %v", what, err)
		}
		if after := row(tc.fence.Name); after != before {
			t.Errorf("%s: the row was %s, and is %s", what, before, after)
		}
	}
	for what, fence := range map[string]fencing.Fence{
		"no token":       {Schema: f.schema, Name: "held"},
		"no name":        {Schema: f.schema, Token: held.Token()},
		"another schema": {Schema: "another", Name: "held", Token: held.Token()},
		"default schema": {Name: "held", Token: held.Token()},
	} {
		if _, err := c.Adopt(t.Context(), fence); !errors.Is(err, fencing.ErrInvalidFence) {
			t.Errorf("%s: %v", what, err)
		}
	}
	fails(t, "an invalid option", second(c.Adopt(t.Context(), held.Fence(), pglock.WithTTL(-1))), pglock.ErrInvalidOption)
	check(t, held.Err())
}

// TestAdoptWaitsForARowLock, for as long as ctx allows. A canceled call leaves the grant as it was.
func TestAdoptWaitsForARowLock(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.open()
	fence, err := try(t, c, "n", pglock.WithTTL(time.Hour)).HandOver()
	must(t, err)
	tx := begin(t, f)
	run(t, tx, f.named("SELECT FROM pglock.distributed_locks FOR UPDATE"))
	why := errors.New("the caller's reason")
	ctx, cancel := context.WithTimeoutCause(t.Context(), 200*time.Millisecond, why)
	defer cancel()
	fails(t, "with the row locked", second(c.Adopt(ctx, fence)), context.DeadlineExceeded, why)
	unlocked := make(chan error, 1)
	time.AfterFunc(200*time.Millisecond, func() { unlocked <- tx.Rollback(context.Background()) })
	l, err := c.Adopt(t.Context(), fence)
	check(t, <-unlocked)
	must(t, err)
	release(t, l)
}

// TestI3_AnAdopterStopsFirst: its deadline counts from before the request was sent, with its own
// TTL and margin, and its longest hold from the grant.
func TestI3_AnAdopterStopsFirst(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	proxy, through := f.proxied()
	far := through.open()
	const delay, ttl = 300 * time.Millisecond, 4 * time.Second
	fence, err := try(t, f.open(), "n", pglock.WithTTL(ttl)).HandOver()
	must(t, err)
	proxy.Delay(delay)
	l, err := far.Adopt(t.Context(), fence, pglock.WithTTL(ttl), pglock.WithSafetyMargin(0), pglock.WithRenewEvery(0), pglock.WithMaxHold(time.Millisecond))
	must(t, err)
	naive := time.Now().Add(ttl)
	proxy.Delay(0)
	ends(t, "the longest hold", l.ReleaseRequested())
	expiry := f.expiry("n")
	if !l.Deadline().Before(expiry) {
		t.Errorf("the deadline is %v after the server's expiry", l.Deadline().Sub(expiry))
	}
	if naive.Before(expiry) {
		t.Error("control: counting from the answer, the deadline would be before the expiry too")
	}
	ends(t, "the loss", l.Done())
	if !errors.Is(l.Err(), pglock.ErrMaxHold) {
		t.Error(l.Err())
	}
}

// TestAHandOverDoesNotProlongTheHold: processes that hand a grant to each other share one longest hold,
// which counts from the grant. An adopter whose longest hold is over is asked to stop at once. In the
// control, it may hold for longer.
func TestAHandOverDoesNotProlongTheHold(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.open()
	fence, err := try(t, c, "n", pglock.WithTTL(time.Hour)).HandOver()
	must(t, err)
	f.sql("UPDATE pglock.distributed_locks SET acquired_at = acquired_at - interval '1 hour' WHERE name = 'n'")
	for range 3 {
		l, err := c.Adopt(t.Context(), fence, pglock.WithTTL(time.Hour), pglock.WithMaxHold(2*time.Hour))
		must(t, err)
		notDone(t, "control: it is asked to stop in the middle of its hold", l.ReleaseRequested())
		if _, err := l.HandOver(); err != nil {
			t.Fatal(err)
		}
	}
	l, err := c.Adopt(t.Context(), fence, pglock.WithTTL(time.Hour), pglock.WithMaxHold(time.Hour/2))
	must(t, err)
	ends(t, "the longest hold", l.ReleaseRequested())
	fails(t, "Extend after the longest hold", l.Extend(t.Context(), time.Hour), pglock.ErrInvalidOption)
	release(t, l)
}

// TestTwoProcessesThatRenewOneGrant: without HandOver, both keep it alive, and the release of one
// ends it for the other. The token does not change.
func TestTwoProcessesThatRenewOneGrant(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	first, second := f.open(), f.open()
	opts := []pglock.LeaseOption{pglock.WithTTL(time.Minute), pglock.WithRenewEvery(100 * time.Millisecond)}
	all := []*pglock.Lease{try(t, first, "n", opts...)}
	for _, c := range []*pglock.Client{second, first} { // also in the same statement
		adopted, err := c.Adopt(t.Context(), all[0].Fence(), opts...)
		must(t, err)
		all = append(all, adopted)
		version := f.version("n")
		pgtest.Eventually(t, "renewals", func() bool { return f.version("n") > version+10 })
		for n, l := range all {
			if l.Err() != nil || l.Token() != all[0].Token() {
				t.Errorf("lease %d of %d: %v", n, len(all), l.Err())
			}
		}
	}
	release(t, all[2])
	for n, l := range all[:2] {
		ends(t, "the others learn of it", l.Done())
		if !errors.Is(l.Err(), pglock.ErrLost) {
			t.Errorf("lease %d: %v", n, l.Err())
		}
	}
}

// TestHandOverOfALeaseThatHasEnded returns why.
func TestHandOverOfALeaseThatHasEnded(t *testing.T) {
	t.Parallel()
	c := newFixture(t).openUnclosed()
	l := try(t, c, "n")
	release(t, l)
	fails(t, "released", second(l.HandOver()), pglock.ErrReleased)
	l = try(t, c, "n", pglock.WithTTL(time.Second), pglock.WithRenewEvery(0))
	ends(t, "the loss", l.Done())
	fails(t, "lost", second(l.HandOver()), pglock.ErrLost)
	check(t, c.Close(t.Context()))
	fails(t, "Adopt by a closed client", second(c.Adopt(t.Context(), l.Fence())), pglock.ErrClosed)
}
