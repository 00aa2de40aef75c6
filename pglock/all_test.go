package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/timing"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/observe"
)

// busyName fails the test unless err says that the name is in the way, and returns the error.
func busyName(t *testing.T, err error, name string) *pglock.BusyError {
	t.Helper()
	var busy *pglock.BusyError
	if !errors.As(err, &busy) || busy.Name != name || !errors.Is(err, pglock.ErrNotAcquired) {
		t.Fatalf("%v: want a *BusyError for %q", err, name)
	}
	return busy
}

// TestPrunedWhileWaiting: the row of a name that is idle for long may be pruned while a call waits for
// others.
func TestPrunedWhileWaiting(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.open()
	b := try(t, c, "b")
	release(t, try(t, c, "a"))
	got := f.waitsForAll(f.open(), "a", "b")
	f.sql("DELETE FROM pglock.distributed_locks WHERE name = 'a'")
	release(t, b)
	release(t, next(t, got))
}

// TestNestedAcquireOfAll: a call whose context holds one of the names is refused, or joins if the lease
// has all of them.
func TestNestedAcquireOfAll(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		c, other := f.open(), f.open()
		outer := tried(t, locktest.All(c, "a", "b", "c"))
		ctx := outer.Context()
		for _, name := range outer.Names() {
			if got, ok := pglock.FromContext(ctx, name); !ok || got != outer {
				t.Errorf("FromContext(%q): %v, %v", name, got, ok)
			}
		}
		if _, ok := pglock.FromContext(ctx, outer.Name()); ok {
			t.Errorf("FromContext(%q) found a lease", outer.Name())
		}
		refused := func(err error, name string) {
			t.Helper()
			var held *pglock.HeldError
			if !errors.As(err, &held) || held.Name != name || held.Token != outer.Token() || errors.Is(err, pglock.ErrNotAcquired) {
				t.Errorf("%v: want a *HeldError for %q", err, name)
			}
		}
		never := func(context.Context, *pglock.Lease) error { t.Error("fn ran"); return nil }
		for _, client := range []*pglock.Client{c, other} {
			_, err := client.Acquire(ctx, "b")
			refused(err, "b")
			_, err = locktest.All(client, "x", "b").Acquire(ctx)
			refused(err, "b")
			err = locktest.All(client, "x", "b").Do(ctx, never, pglock.WithJoin()) // it would wait for x and hold b
			refused(err, "b")
			_, err = locktest.All(client, "a", "b").TryAcquire(ctx)
			refused(err, "a")
			for _, names := range [][]string{{"a"}, {"b", "a"}, {"a", "b", "c"}} {
				err := locktest.All(client, names...).Do(ctx, func(ctx context.Context, joined *pglock.Lease) error {
					tx := f.begin()
					return errors.Join(joined.Guard(ctx, tx), tx.Rollback(ctx))
				}, pglock.WithJoin())
				if err != nil || outer.Err() != nil {
					t.Errorf("joined: %v, %v", err, outer.Err())
				}
			}
		}
		more, err := locktest.All(c, "x", "y").TryAcquire(ctx)
		must(t, err)
		check(t, outer.Err())
		release(t, more)
		release(t, outer)

		single := try(t, c, "a")
		fails(t, "a lease of one name was joined for two", locktest.All(c, "a", "b").Do(single.Context(), never, pglock.WithJoin()), pglock.ErrHeldByCaller)
		release(t, single)
	})
}

// TestEventsOfAll: each name has its events.
func TestEventsOfAll(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		seen := &recorder{}
		c := f.open(pglock.WithObserver(seen.hooks()))
		b := try(t, f.open(pglock.WithHolder("B")), "b")
		got := f.waits(locktest.All(c, "a", "b"))
		await[observe.WaitEvent](t, seen, 2)
		release(t, b)
		release(t, next(t, got))
		var have []string
		for _, e := range await[observe.WaitEvent](t, seen, 2) {
			have = append(have, fmt.Sprintf("wait %s %d %s", e.Name, e.Together, e.Holder))
		}
		for _, e := range await[observe.AcquireEvent](t, seen, 2) {
			have = append(have, fmt.Sprintf("%s %s %d", e.Outcome, e.Name, e.Together))
		}
		for _, e := range await[observe.ReleaseEvent](t, seen, 2) {
			have = append(have, "released "+e.Name)
		}
		slices.Sort(have[4:])
		if want := []string{"wait a 2 ", "wait b 2 B", "granted a 2", "granted b 2", "released a", "released b"}; !slices.Equal(have, want) {
			t.Errorf("the events are %q, want %q", have, want)
		}
	})
}

// TestTheHolderOfOneOfSeveral: a call that gives up without an attempt of its own says who holds one of its
// names, and not who holds a lock that is called as they are together.
func TestTheHolderOfOneOfSeveral(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		c, other := f.open(pglock.WithHolder("A")), f.open(pglock.WithHolder("B"))
		try(t, c, "a, b")
		for holder, held := range map[string]*pglock.Lease{"B": try(t, other, "b"), "A": try(t, c, "d")} {
			name := held.Name()
			first := f.waits(locktest.All(c, "a", name))
			gone, cancel := context.WithCancel(t.Context())
			cancel()
			_, err := locktest.All(c, "a", name).Acquire(gone) // the first call makes the attempts
			if busy := busyName(t, err, name); busy.Holder != holder || busy.ThisClient != (holder == "A") {
				t.Errorf("%s holds it: %v", holder, busy)
			}
			release(t, held)
			release(t, next(t, first))
		}
	})
}

// TestAcquireAllRefusesBadNames: each mistake has an error of its own, and nothing is acquired.
func TestAcquireAllRefusesBadNames(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		c := f.open()
		many := make([]string, pglock.MaxNames+1)
		for i := range many {
			many[i] = fmt.Sprint("n", i)
		}
		for _, tc := range []struct {
			names []string
			want  error
			says  string
		}{
			{nil, pglock.ErrInvalidOption, "no locks: must be at least one"},
			{[]string{}, pglock.ErrInvalidOption, "no locks"},
			{[]string{"a", "b", "a"}, pglock.ErrInvalidOption, `"a" is given twice`},
			{many, pglock.ErrInvalidOption, "129 names: too many: must be at most 128"},
			{[]string{"a", ""}, pglock.ErrInvalidOption, "empty"},
			{[]string{"a", "b\x00"}, pglock.ErrInvalidOption, "NUL"},
			{[]string{"a", strings.Repeat("b", 513)}, pglock.ErrInvalidOption, "513 bytes"},
		} {
			if _, err := locktest.All(c, tc.names...).Acquire(t.Context()); !errors.Is(err, tc.want) || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("%.40q: %v", tc.names, err)
			}
		}
		release(t, tried(t, locktest.All(c, many[1:]...)))
	})
}

// TestALostLeaseOfAllExpires: the names that are left are not renewed.
func TestALostLeaseOfAllExpires(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		c := f.open(pglock.WithTTL(time.Second))
		l := tried(t, locktest.All(c, "a", "b"))
		f.Expire("b", 0)
		ends(t, "the loss", l.Done())
		other := acquire(t, f.open(), "a")
		release(t, other)
	})
}

// TestCloseLeavesNoRowOfACallerForAll, which waits as a client of its own.
func TestCloseLeavesNoRowOfACallerForAll(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		b := try(t, f.open(), "b")
		defer release(t, b)
		c := f.openUnclosed()
		left := leaving(t.Context(), locktest.All(c, "a", "b"))
		synctest.Wait()
		must(t, c.Close(t.Context()))
		fails(t, "the waiter", <-left, pglock.ErrClosed)
		if row := f.row("b"); len(row.Waiters) > 0 {
			t.Errorf("%+v", row.Waiters)
		}
	})
}

// TestAcquireAllOrNothing: all names have the same token, which is above those before. Nothing is
// acquired if one of them is held.
func TestAcquireAllOrNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		c, other := f.open(pglock.WithHolder("A")), f.open(pglock.WithHolder("B"))
		before := try(t, c, "b")
		release(t, before)
		names := []string{"c", "a", "b"} // in any order
		l := tried(t, locktest.All(c, names...), pglock.WithLabels(map[string]string{"k": "v"}))
		if got := l.Names(); !slices.Equal(got, []string{"a", "b", "c"}) || l.Holder() != "A" || l.Err() != nil {
			t.Errorf("the lease has %q, %q, %v", got, l.Holder(), l.Err())
		}
		if !slices.Equal(names, []string{"c", "a", "b"}) {
			t.Errorf("the caller's names are %q", names)
		}
		grows(t, before, l)
		for _, name := range names {
			if k := f.row(name); k.Holder != "A" || k.Token != l.Token() || k.Labels["k"] != "v" {
				t.Errorf("%+v", k)
			}
		}
		for i, fence := range l.Fences() {
			if want := (fencing.Fence{Schema: c.Schema(), Name: l.Names()[i], Token: l.Token()}); fence != want {
				t.Errorf("fence %d is %v", i, fence)
			}
		}
		fails(t, "a check of one fence for all of them", fencing.Check(t.Context(), f.begin(), l.Fence()), fencing.ErrInvalidFence)
		_, err := locktest.All(other, "b", "x", "y").TryAcquire(t.Context())
		if busy := busyName(t, err, "b"); busy.Token != l.Token() || busy.Holder != "A" {
			t.Errorf("%v", busy)
		}
		fails(t, "a refused call has made a row", second(c.Get(t.Context(), "x")), pglock.ErrNotFound)
		release(t, l)
		release(t, l) // again
		fails(t, "the context ends with", context.Cause(l.Context()), pglock.ErrReleased)
		f.empty(names...)
		again := tried(t, locktest.All(other, "b", "x", "y"))
		grows(t, l, again)
		release(t, again)
		if n := pglock.Tracked(c) + pglock.Tracked(other); n != 0 {
			t.Errorf("%d leases are tracked", n)
		}
	})
}

// TestAllRefusesLocksOfOtherClients: the name of a lock of another client is another lock there,
// which the lease would not hold. A lock that no client has made is refused as well. The control is
// the same lock of the client itself.
func TestAllRefusesLocksOfOtherClients(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		c, own, closed := f.open(), f.open(), f.openUnclosed()
		must(t, closed.Close(t.Context()))
		for what, other := range map[string]pglock.Lock{
			"of other tables": newFake(t).open().Lock("o"), "of another client of these tables": own.Lock("o"), "of a closed client": closed.Lock("o"),
			"without a client": {}, "of another kind": own.Semaphore("o", 2), "of several names": locktest.All(own, "o", "p"),
		} {
			for _, locks := range [][]pglock.Lock{{other}, {other, c.Lock("n")}, {c.Lock("n"), other}} {
				all := c.All(locks...)
				for _, err := range []error{
					second(all.TryAcquire(t.Context())),
					all.Do(t.Context(), func(context.Context, *pglock.Lease) error { t.Error("it ran"); return nil }),
				} {
					if !errors.Is(err, pglock.ErrInvalidOption) || !strings.Contains(err.Error(), "not of this client") {
						t.Errorf("%s: %v", what, err)
					}
				}
			}
		}
		for _, locks := range [][]pglock.Lock{{c.Lock("o")}, {c.Lock("n"), c.Lock("o")}} {
			release(t, tried(t, c.All(locks...)))
		}
		fails(t, "all of a closed client", second(closed.All(closed.Lock("n"), closed.Lock("o")).TryAcquire(t.Context())), pglock.ErrClosed)
	})
}

// TestASpentRequestForAllGivesTheRestBack: the answer is lost, and one of its grants has ended when the call
// asks again. The grants that are left would keep the call, and all others, out until they expire.
func TestASpentRequestForAllGivesTheRestBack(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		proxy, far := f.proxied()
		c := far.open(pglock.WithTTL(time.Hour))
		release(t, tried(t, locktest.All(c, "a", "b"))) // opens a connection and prepares its statements
		proxy.DropReplies()
		got := async(t, locktest.All(c, "a", "b"))
		synctest.Wait()
		f.Expire("a", 0)
		proxy.Heal()
		proxy.Sever()
		release(t, next(t, got))
	})
}

// TestI9_ACallerForAllLeavesNothing: a waiter that gives up leaves no ticket, and the waiters behind it
// go on at once. A call that ends at any moment leaves no lock.
func TestI9_ACallerForAllLeavesNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		c, waiting := f.open(), f.open()
		b := try(t, c, "b")
		ctx, cancel := context.WithCancel(t.Context())
		left := leaving(ctx, locktest.All(waiting, "a", "b"))
		synctest.Wait()
		later := f.waits(f.open().Lock("a"))
		cancel()
		var wait *pglock.WaitError
		if err := <-left; !errors.As(err, &wait) || !errors.Is(err, context.Canceled) || wait.Name != "a, b" || !strings.Contains(err.Error(), `"b"`) {
			t.Errorf("it gave up with %v", err)
		} else {
			_ = busyName(t, err, "b")
		}
		release(t, try(t, waiting, "c")) // P56
		began := time.Now()
		release(t, next(t, later))
		atMost(t, time.Second, "the next waiter was granted the lock", began)
		release(t, b)
		release(t, tried(t, locktest.All(waiting, "a", "b"))) // P56
	})
}

// TestTicketsForAllAreKept: the client of a living waiter keeps its ticket from being skipped, and draws
// a new one when the server has lost the queue.
func TestTicketsForAllAreKept(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		b := try(t, f.open(), "b")
		waiting := f.open()
		got := f.waits(locktest.All(waiting, "a", "b"))
		rest(t, 4*time.Second)
		isBusy(t, "a living waiter is skipped", f.open().Lock("a"))
		f.Crash()
		rest(t, timing.RefreshEvery)
		if a, b := f.row("a").Waiters, f.row("b").Waiters; len(a) != 1 || len(b) != 1 || a[0].Ticket != b[0].Ticket {
			t.Errorf("the tickets are %+v, %+v", a, b)
		}
		release(t, b)
		release(t, next(t, got))
		rest(t, time.Second)
		f.empty("a", "b")
	})
}

// TestI4_GuardOfAll: no guarded transaction can begin after one of the names is gone.
func TestI4_GuardOfAll(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		c := f.open()
		for what, guard := range map[string]func(*pglock.Lease, context.Context, fencing.Tx) error{
			"Guard": (*pglock.Lease).Guard, "Bind": (*pglock.Lease).Bind,
			"CheckAll": func(l *pglock.Lease, ctx context.Context, tx fencing.Tx) error {
				return fencing.CheckAll(ctx, tx, l.Fences()...)
			},
		} {
			l := tried(t, locktest.All(c, "a", "b"))
			tx := f.begin()
			must(t, guard(l, t.Context(), tx))
			must(t, tx.Rollback(t.Context()))
			f.Expire("b", 0)
			var stale *fencing.StaleError
			tx = f.begin()
			if err := guard(l, t.Context(), tx); !errors.As(err, &stale) || stale.Resource != "b" || stale.Token != l.Token() {
				t.Errorf("%s without one of the names: %v", what, err)
			}
			must(t, tx.Rollback(t.Context()))
			_ = l.Release(t.Context())
		}
	})
}
