package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/pglock/pglock-go/fencing"
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

// TestHandOverOfALeaseThatHasEnded returns why.
func TestHandOverOfALeaseThatHasEnded(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		c := f.openUnclosed()
		l := try(t, c, "n")
		release(t, l)
		fails(t, "released", second(l.HandOver()), pglock.ErrReleased)
		l = try(t, c, "n", pglock.WithTTL(time.Second), pglock.WithRenewEvery(0))
		ends(t, "the loss", l.Done())
		fails(t, "lost", second(l.HandOver()), pglock.ErrLost)
		check(t, c.Close(t.Context()))
		fails(t, "Adopt by a closed client", second(c.Adopt(t.Context(), l.Fence())), pglock.ErrClosed)
	})
}

// TestAJobIsHandedOver to another client, as text, which renews, writes under guard, and hands it back. The
// first client can neither renew nor release meanwhile, even when it is closed.
func TestAJobIsHandedOver(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
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
		rest(t, time.Minute)
		check(t, adopted.Guard(t.Context(), f.begin()))
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
		fails(t, "a write after HandOver", adopted.Guard(t.Context(), f.begin()), fencing.ErrStale)
		release(t, l)
		fails(t, "a fence whose grant has ended", second(adopt(adopter, text(t, fence))), fencing.ErrStale)
	})
}

// TestAdoptRefusesOtherGrants: those that have ended, in any way, those of another name or token,
// and those that can't be in this schema. The grants stay as they are.
func TestAdoptRefusesOtherGrants(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		c := f.open()
		release(t, try(t, c, "held")) // so that the next token is not the first one
		held := try(t, c, "held")
		defer release(t, held)
		handOver := func(name string) fencing.Fence {
			fence, err := try(t, c, name, pglock.WithTTL(time.Hour)).HandOver()
			must(t, err)
			return fence
		}
		released, kept := try(t, c, "released"), try(t, c, "kept", pglock.WithMinHold(time.Hour))
		release(t, released)
		release(t, kept)
		expired, followed := handOver("expired"), handOver("followed")
		f.Expire("expired", 0)
		newer := f.steal("followed").Token()
		fence := func(name string, token fencing.Token) fencing.Fence {
			return fencing.Fence{Schema: c.Schema(), Name: name, Token: token}
		}
		for what, tc := range map[string]struct {
			fence   fencing.Fence
			current fencing.Token
		}{
			"expired":      {expired, expired.Token},
			"released":     {released.Fence(), released.Token()},
			"kept":         {kept.Fence(), kept.Token()},
			"followed":     {followed, newer},
			"older token":  {fence("held", held.Token()-1), held.Token()},
			"newer token":  {fence("held", held.Token()+1), held.Token()},
			"another name": {fence("nobody", held.Token()), 0},
		} {
			before := fmt.Sprint(f.row(tc.fence.Name))
			l, err := c.Adopt(t.Context(), tc.fence)
			var stale *fencing.StaleError
			if !errors.Is(err, fencing.ErrStale) || !errors.As(err, &stale) || stale.Current != tc.current || l != nil {
				t.Errorf("%s: %v", what, err)
			}
			if after := fmt.Sprint(f.row(tc.fence.Name)); after != before {
				t.Errorf("%s: the row was %s, and is %s", what, before, after)
			}
		}
		for what, fence := range map[string]fencing.Fence{
			"no token": fence("held", 0), "no name": fence("", held.Token()),
			"another schema": {Schema: "another", Name: "held", Token: held.Token()},
		} {
			fails(t, what, second(c.Adopt(t.Context(), fence)), fencing.ErrInvalidFence)
		}
		for _, o := range []pglock.LeaseOption{pglock.WithTTL(-1), nil} {
			fails(t, "an invalid option", second(c.Adopt(t.Context(), held.Fence(), o)), pglock.ErrInvalidOption)
		}
		check(t, held.Err())
	})
}

// TestI3_AnAdopterStopsFirst: its deadline counts from before the request was sent, with its own
// TTL and margin, and its longest hold from the grant.
func TestI3_AnAdopterStopsFirst(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
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
		if l.Deadline().After(expiry) {
			t.Errorf("the deadline is %v after the server's expiry", l.Deadline().Sub(expiry))
		}
		if naive.Before(expiry) {
			t.Error("control: counting from the answer, the deadline would be before the expiry too")
		}
		ends(t, "the loss", l.Done())
		if !errors.Is(l.Err(), pglock.ErrMaxHold) {
			t.Error(l.Err())
		}
	})
}

// TestAHandOverDoesNotProlongTheHold: processes that hand a grant to each other share one longest hold,
// which counts from the grant. An adopter whose longest hold is over is asked to stop at once. In the
// control, it may hold for longer.
func TestAHandOverDoesNotProlongTheHold(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		c := f.open()
		fence, err := try(t, c, "n", pglock.WithTTL(10*time.Hour)).HandOver()
		must(t, err)
		rest(t, time.Hour)
		for range 3 {
			l, err := c.Adopt(t.Context(), fence, pglock.WithTTL(10*time.Hour), pglock.WithMaxHold(2*time.Hour))
			must(t, err)
			notDone(t, "control: it is asked to stop in the middle of its hold", l.ReleaseRequested())
			if _, err := l.HandOver(); err != nil {
				t.Fatal(err)
			}
		}
		l, err := c.Adopt(t.Context(), fence, pglock.WithTTL(10*time.Hour), pglock.WithMaxHold(time.Hour/2))
		must(t, err)
		ends(t, "the longest hold", l.ReleaseRequested())
		fails(t, "Extend after the longest hold", l.Extend(t.Context(), 100*time.Hour), pglock.ErrInvalidOption)
		release(t, l)
	})
}

// TestTwoProcessesThatRenewOneGrant: without HandOver, both keep it alive, and the release of one
// ends it for the other. The token does not change.
func TestTwoProcessesThatRenewOneGrant(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		first, second := f.open(), f.open()
		opts := []pglock.LeaseOption{pglock.WithTTL(time.Minute), pglock.WithRenewEvery(100 * time.Millisecond)}
		all := []*pglock.Lease{try(t, first, "n", opts...)}
		for _, c := range []*pglock.Client{second, first} { // also in the same statement
			adopted, err := c.Adopt(t.Context(), all[0].Fence(), opts...)
			must(t, err)
			all = append(all, adopted)
			rest(t, 3*time.Minute)
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
	})
}
