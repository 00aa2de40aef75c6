package pglock_test

import (
	"errors"
	"fmt"
	"iter"
	"strings"
	"testing"
	"time"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/inspect"
)

func get(t *testing.T, c *pglock.Client, name string) inspect.Lock {
	t.Helper()
	k, err := c.Get(t.Context(), name)
	must(t, err)
	return k
}

// names returns the names of the locks that match a filter.
func names(t *testing.T, c *pglock.Client, filter inspect.Filter) (all string) {
	t.Helper()
	for k, err := range c.Locks(t.Context(), filter) {
		must(t, err)
		all += k.Name + " "
	}
	return all
}

// TestPermitsAreListed by Get and Locks, with the filters of any lock.
func TestPermitsAreListed(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.open(pglock.WithHolder("A"))
	release(t, try(t, c, "lease"))
	s := c.Semaphore("semaphore", 4)
	one := tried(t, s, pglock.WithLabels(map[string]string{"k": "v"}))
	two := tried(t, s.Weight(2), pglock.WithHolder("B"))
	w := tried(t, rwlock(c, "rw").write)
	k := get(t, c, "semaphore")
	if k.Kind != inspect.Semaphore || k.Permits != 4 || k.InUse() != 3 || !k.Held() || k.Holder != "" || len(k.Grants) != 2 {
		t.Fatalf("%+v", k)
	}
	a, b := k.Grants[0], k.Grants[1]
	if a.Token != one.Token() || a.Holder != "A" || a.Permits != 1 || a.Labels["k"] != "v" || a.Exclusive || a.Remaining <= 0 || a.Remaining > 30*time.Second ||
		time.Since(a.AcquiredAt) > time.Hour || a.HeldFor <= 0 {
		t.Errorf("%+v", a)
	}
	if b.Token != two.Token() || b.Holder != "B" || b.Permits != 2 || len(b.Labels) != 0 {
		t.Errorf("%+v", b)
	}
	if k = get(t, c, "rw"); k.Kind != inspect.RWLock || k.Permits != 0 || len(k.Grants) != 1 || !k.Grants[0].Exclusive || k.Grants[0].Token != w.Token() || k.Holder != "A" {
		t.Errorf("%+v", k)
	}
	if k = get(t, c, "lease"); k.Kind != inspect.OneHolder || k.Grants != nil || k.Held() {
		t.Errorf("%+v", k)
	}
	for _, test := range []struct {
		filter inspect.Filter
		want   string
	}{
		{inspect.Filter{}, "lease rw semaphore "},
		{inspect.Filter{Held: true}, "rw semaphore "},
		{inspect.Filter{Holder: "A"}, "rw semaphore "},
		{inspect.Filter{Holder: "B"}, "semaphore "},
		{inspect.Filter{Labels: map[string]string{"k": "v"}}, "semaphore "},
		{inspect.Filter{Holder: "B", Labels: map[string]string{"k": "v"}}, ""}, // no grant has both
	} {
		if got := names(t, c, test.filter); got != test.want {
			t.Errorf("%+v: %q, want %q", test.filter, got, test.want)
		}
	}
	release(t, one)
	release(t, two)
	if k = get(t, c, "semaphore"); k.Held() || k.InUse() != 0 || k.Previous.Holder != "B" || k.Previous.End != "released" {
		t.Errorf("%+v", k)
	}
	if got := names(t, c, inspect.Filter{Held: true}); got != "rw " {
		t.Errorf("held are %s", got)
	}
	release(t, w)
}

// TestWatchPermits: Watch shows each change of the grants, also those that change no token.
func TestWatchPermits(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		c := f.open()
		rw := rwlock(c, "rw")
		ctx := bounded(t, time.Minute)
		next, stop := iter.Pull2(f.open().Watch(ctx, "rw"))
		defer stop()
		expect := func(what string, exclusive bool, n int) {
			t.Helper()
			k, err, ok := next()
			if err != nil || !ok || len(k.Grants) != n || n > 0 && k.Grants[0].Exclusive != exclusive {
				t.Fatalf("%s: %+v, %v", what, k, err)
			}
		}
		expect("at first", false, 0)
		w := tried(t, rw.write)
		expect("a writer", true, 1)
		downgrade(t, w)
		expect("a downgrade", false, 1)
		r := tried(t, rw.read, pglock.WithTTL(5*time.Second), pglock.WithRenewEvery(0))
		began := time.Now()
		expect("another reader", false, 2) // within a second, since a grant does not notify
		expect("its expiry", false, 1)
		atMost(t, 10*time.Second, "the expiry was seen", began)
		release(t, w)
		expect("the release", false, 0)
		_ = r.Release(t.Context()) // it was lost
	})
}

// TestEachHolderOfRevokedPermitsLearnsWhy, also if no notification tells it: one revocation of a name
// does not replace another. Each can be repeated.
func TestEachHolderOfRevokedPermitsLearnsWhy(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		const holders = 5
		s := f.open(pglock.WithTTL(10*time.Second), pglock.WithPollOnly()).Semaphore("s", holders+1)
		operator := f.open()
		var all []*pglock.Lease
		for range holders {
			all = append(all, tried(t, s))
		}
		spared := tried(t, s)
		for range 2 {
			for i, l := range all {
				must(t, operator.Revoke(t.Context(), "s", l.Token(), fmt.Sprint("reason ", i)))
			}
		}
		for i, l := range all {
			ends(t, "the loss", l.Done())
			if err := l.Err(); !errors.Is(err, pglock.ErrRevoked) || !strings.Contains(err.Error(), fmt.Sprintf(`"reason %d"`, i)) {
				t.Errorf("holder %d is told %v", i, err)
			}
		}
		check(t, spared.Err())
		release(t, spared)
	})
}

// TestRequestReleaseOfPermits: the request reaches the holder of one grant only, and goes along when
// a writer becomes a reader.
func TestRequestReleaseOfPermits(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		holder, operator := f.open(pglock.WithTTL(6*time.Second)), f.open()
		s := holder.Semaphore("s", 2)
		a, b := tried(t, s), tried(t, s)
		must(t, operator.RequestRelease(t.Context(), "s", a.Token(), "please"))
		ends(t, "the request", a.ReleaseRequested())
		if k := get(t, operator, "s"); !k.Grants[0].ReleaseRequested || k.Grants[0].ReleaseReason != "please" || k.Grants[1].ReleaseRequested {
			t.Errorf("%+v", k.Grants)
		}
		notDone(t, "another grant is asked", b.ReleaseRequested())
		release(t, a)
		fails(t, "a request to a released grant", operator.RequestRelease(t.Context(), "s", a.Token(), ""), fencing.ErrStale)
		release(t, b)
		w := tried(t, rwlock(holder, "rw").write, pglock.WithRenewEvery(0))
		must(t, operator.RequestRelease(t.Context(), "rw", w.Token(), "writer"))
		downgrade(t, w)
		if k := get(t, operator, "rw"); k.Grants[0].ReleaseReason != "writer" {
			t.Errorf("%+v", k.Grants)
		}
		release(t, w)
	})
}

// TestWaitersSayWhatTheyWaitFor: permits of a semaphore, or the whole lock.
func TestWaitersSayWhatTheyWaitFor(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		c := f.open()
		tried(t, c.Semaphore("semaphore", 4).Weight(4))
		tried(t, c.Writer("rw"))
		for _, want := range []struct {
			lock      func(c *pglock.Client) pglock.Lock
			permits   int
			exclusive bool
		}{
			{func(c *pglock.Client) pglock.Lock { return c.Semaphore("semaphore", 4).Weight(2) }, 2, false},
			{func(c *pglock.Client) pglock.Lock { return c.Semaphore("semaphore", 4).Weight(4) }, 4, true},
			{func(c *pglock.Client) pglock.Lock { return c.Reader("rw") }, 0, false},
			{func(c *pglock.Client) pglock.Lock { return c.Writer("rw") }, 0, true},
		} {
			waiting := want.lock(f.open())
			before := len(get(t, c, waiting.Name()).Waiters)
			go func() { _, _ = waiting.Acquire(t.Context()) }() // until the test ends
			pgtest.Eventually(t, "the waiter is listed", func() bool { return len(get(t, c, waiting.Name()).Waiters) > before })
			if w := get(t, c, waiting.Name()).Waiters[before]; w.Permits != want.permits || w.Exclusive != want.exclusive {
				t.Errorf("a waiter for %d permits, exclusive %v: %+v", want.permits, want.exclusive, w)
			}
		}
	})
}
