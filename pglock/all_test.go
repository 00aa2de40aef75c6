package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
)

func tryAll(t *testing.T, c *pglock.Client, names []string, opts ...pglock.LeaseOption) *pglock.Lease {
	t.Helper()
	l, err := locktest.All(c, names...).TryAcquire(t.Context(), opts...)
	if err != nil {
		t.Fatalf("TryAcquireAll(%q): %v", names, err)
	}
	return l
}

// waitsForAll makes the client wait for the sorted names, and returns when it sleeps with a ticket.
func (f fixture) waitsForAll(c *pglock.Client, names ...string) (got <-chan *pglock.Lease) {
	f.t.Helper()
	granted := make(chan *pglock.Lease, 1)
	go func() {
		l, err := locktest.All(c, names...).Acquire(f.t.Context())
		if err != nil {
			f.t.Errorf("AcquireAll(%q): %v", names, err)
		}
		granted <- l
	}()
	pgtest.Eventually(f.t, 10*time.Second, "it waits for all", func() bool { return pglock.AllWait(c, names...) })
	return granted
}

// grantedSoon returns what a waiter is granted.
func grantedSoon(t *testing.T, got <-chan *pglock.Lease) *pglock.Lease {
	t.Helper()
	select {
	case l := <-got:
		if l == nil {
			t.FailNow()
		}
		return l
	case <-time.After(20 * time.Second):
		t.Fatal("the waiter is not granted the locks")
		return nil
	}
}

// stillWaits fails the test if the waiter has been granted its locks.
func stillWaits(t *testing.T, got <-chan *pglock.Lease) {
	t.Helper()
	select {
	case l := <-got:
		t.Fatalf("the waiter was granted %q", l.Names())
	default:
	}
}

// busyName fails the test unless err says that the name is in the way, and returns the error.
func busyName(t *testing.T, err error, name string) *pglock.BusyError {
	t.Helper()
	var busy *pglock.BusyError
	if !errors.As(err, &busy) || busy.Name != name || !errors.Is(err, pglock.ErrNotAcquired) {
		t.Fatalf("%v: want a *BusyError for %q", err, name)
	}
	return busy
}

// TestAcquireAllOrNothing: all names have the same token, which is above those before. Nothing is
// acquired if one of them is held.
func TestAcquireAllOrNothing(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c, other := f.open(pglock.WithHolder("A")), f.open(pglock.WithHolder("B"))
	before := try(t, c, "b")
	release(t, before)
	names := []string{"c", "a", "b"} // in any order
	l := tryAll(t, c, names, pglock.WithLabels(map[string]string{"k": "v"}))
	if got := l.Names(); !slices.Equal(got, []string{"a", "b", "c"}) || l.Holder() != "A" || l.Err() != nil {
		t.Errorf("the lease has %q, %q, %v", got, l.Holder(), l.Err())
	}
	if !slices.Equal(names, []string{"c", "a", "b"}) {
		t.Errorf("the caller's names are %q", names)
	}
	if l.Token() <= before.Token() {
		t.Errorf("the token %d is not above %d", l.Token(), before.Token())
	}
	if n := value[int](f, "SELECT count(*) FROM pglock.distributed_locks WHERE holder = 'A' AND token = $1 AND labels = '{\"k\": \"v\"}'", int64(l.Token())); n != 3 {
		t.Errorf("%d rows have the grant", n)
	}
	for i, fence := range l.Fences() {
		if want := (fencing.Fence{Schema: f.schema, Name: l.Names()[i], Token: l.Token()}); fence != want {
			t.Errorf("fence %d is %v", i, fence)
		}
	}
	if err := fencing.Check(t.Context(), begin(t, f), l.Fence()); !errors.Is(err, fencing.ErrInvalidFence) {
		t.Errorf("a check of one fence for all of them: %v", err)
	}
	for _, name := range l.Names() {
		_, err := other.TryAcquire(t.Context(), name)
		if busy := busyName(t, err, name); busy.Token != l.Token() || busy.Holder != "A" {
			t.Errorf("%v", busy)
		}
	}
	_, err := locktest.All(other, "b", "x", "y").TryAcquire(t.Context())
	_ = busyName(t, err, "b")
	if n := value[int](f, "SELECT count(*) FROM pglock.distributed_locks WHERE name IN ('x', 'y')"); n != 0 {
		t.Errorf("a refused call has made %d rows", n)
	}
	release(t, l)
	release(t, l) // again
	if err := context.Cause(l.Context()); !errors.Is(err, pglock.ErrReleased) {
		t.Errorf("the context ends with %v", err)
	}
	if n := value[int](f, "SELECT count(*) FROM pglock.distributed_locks WHERE holder IS NOT NULL"); n != 0 {
		t.Errorf("%d names are still held", n)
	}
	again := tryAll(t, other, []string{"b", "x", "y"})
	if again.Token() <= l.Token() {
		t.Errorf("the token %d is not above %d", again.Token(), l.Token())
	}
	release(t, again)
	if n := pglock.Tracked(c) + pglock.Tracked(other); n != 0 {
		t.Errorf("%d leases are tracked", n)
	}
}

// TestAcquireAllRefusesBadNames: each mistake has an error of its own, and nothing is acquired.
func TestAcquireAllRefusesBadNames(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
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
	release(t, tryAll(t, c, many[1:]))
	for name, found := range map[string]int{"z": 3, "rw": 1 << 30} {
		if name == "z" {
			release(t, permits(t, c.Semaphore(name, found), 1))
		} else {
			l, err := rwlock(c, name).read.Acquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			release(t, l)
		}
		_, err := locktest.All(c, "a", name).Acquire(t.Context())
		var kind *pglock.KindError
		if !errors.As(err, &kind) || kind.Name != name || kind.Found != found || kind.Wanted != 0 || !errors.Is(err, pglock.ErrKind) {
			t.Errorf("a name with %d permits: %v", found, err)
		}
	}
	if n := value[int](f, "SELECT count(*) FROM pglock.distributed_locks WHERE name = 'a'"); n != 0 {
		t.Errorf("%d refused names have rows", n)
	}
	if n := value[int](f, "SELECT count(*) FROM pglock.lock_waiters WHERE expires_at > clock_timestamp()"); n != 0 {
		t.Errorf("%d tickets are left", n)
	}
}

// TestI7_LosingAllIsFree: a call that is refused writes nothing to any row.
func TestI7_LosingAllIsFree(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.open()
	release(t, tryAll(t, c, []string{"a", "b", "c"}))
	held := try(t, c, "b")
	rows := func() string {
		return value[string](f, "SELECT string_agg(format('%s %s %s', name, xmin, xmax), ', ' ORDER BY name) FROM pglock.distributed_locks")
	}
	before := rows()
	_, err := locktest.All(c, "a", "b", "c").TryAcquire(t.Context())
	_ = busyName(t, err, "b")
	if after := rows(); after != before {
		t.Errorf("a refused call changed rows:\n%s\n%s", before, after)
	}
	release(t, held)
}

// TestAWaiterForAllHoldsNothing, and is granted all names when the last one is released. It is not
// overtaken, even if a name is free for longer than a dead waiter delays the queue.
func TestAWaiterForAllHoldsNothing(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]pglock.Option{"": nil, "without notifications": {pglock.WithPollOnly()}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			c, one := f.open(), f.open(opts...)
			a, b := try(t, c, "a"), try(t, c, "b")
			all := f.waitsForAll(f.open(opts...), "a", "b", "c")
			if n := value[int](f, "SELECT count(DISTINCT ticket) FROM pglock.lock_waiters"); n != 1 {
				t.Errorf("it has %d tickets", n)
			}
			later := f.waits(one, "a")
			release(t, a)
			// As if a had been free for longer than the queue waits for a silent waiter.
			f.sql("UPDATE pglock.distributed_locks SET ended_at = clock_timestamp() - interval '1 hour' WHERE name = 'a'")
			rest(t, 2*time.Second)
			stillWaits(t, all)
			stillWaits(t, later)
			for _, name := range []string{"a", "c"} {
				if _, err := c.TryAcquire(t.Context(), name); !errors.Is(err, pglock.ErrNotAcquired) {
					t.Errorf("a newcomer was granted %q: %v", name, err)
				}
			}
			release(t, b)
			l := grantedSoon(t, all)
			stillWaits(t, later)
			if l.Token() <= b.Token() {
				t.Errorf("the token %d is not above %d", l.Token(), b.Token())
			}
			release(t, l)
			release(t, grantedSoon(t, later))
		})
	}
}

// TestI9_ACallerForAllLeavesNothing: a waiter that gives up leaves no ticket, and the waiters behind it
// go on at once. A call that ends at any moment leaves no lock.
func TestI9_ACallerForAllLeavesNothing(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c, waiting := f.open(), f.open()
	b := try(t, c, "b")
	ctx, cancel := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() {
		_, err := locktest.All(waiting, "a", "b").Acquire(ctx)
		left <- err
	}()
	pgtest.Eventually(t, 10*time.Second, "it waits", func() bool { return pglock.AllWait(waiting, "a", "b") })
	later := f.waits(f.open(), "a")
	cancel()
	var wait *pglock.WaitError
	if err := <-left; !errors.As(err, &wait) || !errors.Is(err, context.Canceled) || wait.Name != "a, b" || !strings.Contains(err.Error(), `"b"`) {
		t.Errorf("it gave up with %v", err)
	} else {
		_ = busyName(t, err, "b")
	}
	release(t, try(t, waiting, "c")) // P56
	began := time.Now()
	release(t, grantedSoon(t, later))
	if took := time.Since(began); took > time.Second {
		t.Errorf("the next waiter was granted the lock after %v", took)
	}
	release(t, b)
	release(t, tryAll(t, waiting, []string{"a", "b"})) // P56

	for i := range 40 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*100*time.Microsecond)
		l, err := locktest.All(waiting, "a", "b", fmt.Sprint("new", i)).Acquire(ctx, pglock.WithTTL(time.Hour))
		cancel()
		if err == nil {
			release(t, l)
		} else if !errors.Is(err, pglock.ErrNotAcquired) {
			t.Fatal(err)
		}
	}
	pgtest.Eventually(t, 30*time.Second, "nothing is held", func() bool {
		return value[int](f, "SELECT count(*) FROM pglock.distributed_locks WHERE holder IS NOT NULL") == 0 &&
			value[int](f, "SELECT count(*) FROM pglock.lock_waiters AS w JOIN pglock.distributed_locks AS l USING (name) WHERE w.ticket > l.ticket AND w.expires_at > clock_timestamp()") == 0
	})
}

// TestADeadWaiterForAllIsSkipped: a client that dies while it waits delays the others for a few seconds
// only, at names that are free.
func TestADeadWaiterForAllIsSkipped(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.open()
	b := try(t, c, "b", pglock.WithTTL(time.Minute))
	release(t, try(t, c, "a"))
	f.sql(`SELECT pglock.join_all('{a,b}', '{NULL,NULL}', '{1,1}', 'pglock_dead_all/1', 15000000, 3000000, 'dead', 0, true)`)
	began := time.Now()
	l, err := f.open().Acquire(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took < 2*time.Second || took > 8*time.Second {
		t.Errorf("a free lock was granted %v after a waiter had died", took)
	}
	release(t, l)
	release(t, b)
	f.sql(`SELECT pglock.join_all('{a,b}', '{NULL,NULL}', '{1,1}', 'pglock_dead_all/1', 15000000, 0, 'dead', 0, true)`)
	began = time.Now()
	all, err := locktest.All(f.open(), "a", "b").Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took > 8*time.Second {
		t.Errorf("all locks were granted %v after a waiter had died", took)
	}
	release(t, all)
}

// TestTicketsForAllAreKept: the client of a living waiter keeps its ticket from being skipped, and draws
// a new one when the server has lost the queue.
func TestTicketsForAllAreKept(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	b := try(t, f.open(), "b")
	waiting := f.open()
	got := f.waitsForAll(waiting, "a", "b")
	rest(t, 4*time.Second)
	if n := value[int](f, "SELECT count(*) FROM pglock.lock_waiters WHERE keep_until > clock_timestamp()"); n != 2 {
		t.Errorf("%d of 2 rows are kept", n)
	}
	f.sql("DELETE FROM pglock.lock_waiters WHERE name = 'a'")
	pgtest.Eventually(t, 20*time.Second, "a new ticket", func() bool {
		return value[int](f, "SELECT count(*) FROM pglock.lock_waiters") == 2 && pglock.AllWait(waiting, "a", "b")
	})
	if n := value[int](f, "SELECT count(DISTINCT ticket) FROM pglock.lock_waiters"); n != 1 {
		t.Errorf("it has %d tickets", n)
	}
	release(t, b)
	release(t, grantedSoon(t, got))
	pgtest.Eventually(t, 20*time.Second, "the rows are deleted", func() bool {
		return value[int](f, "SELECT count(*) FROM pglock.lock_waiters") == 0
	})
}

// TestATicketForAllIsSkippedAtOneName: the caller draws a new one, and the next waiter at its other name
// goes on.
func TestATicketForAllIsSkippedAtOneName(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.open()
	b := try(t, c, "b")
	release(t, try(t, c, "a"))
	waiting := f.open()
	got := f.waitsForAll(waiting, "a", "b")
	behind := f.waits(f.open(pglock.WithHolder("behind")), "a")
	f.sql(invalidateTickets, "b") // as if the queue for b had skipped it
	a := grantedSoon(t, behind)
	release(t, b)
	rest(t, 100*time.Millisecond)
	stillWaits(t, got)
	release(t, a)
	release(t, grantedSoon(t, got))
}

// TestPartialLoss: the loss of one name ends the lease, and the error has that name. The others stay
// held until Release.
func TestPartialLoss(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c, other := f.open(pglock.WithTTL(2*time.Second)), f.open()
	for what, lose := range map[string]func(l *pglock.Lease){
		"the row is another grant's": func(*pglock.Lease) {
			f.sql("UPDATE pglock.distributed_locks SET token = pglock.next_fencing_token() WHERE name = 'b'")
		},
		"revoked": func(l *pglock.Lease) {
			if err := other.Revoke(t.Context(), "b", l.Token(), "maintenance"); err != nil {
				t.Fatal(err)
			}
		},
		"revoked by the same client": func(l *pglock.Lease) {
			if err := c.Revoke(t.Context(), "b", l.Token(), "maintenance"); err != nil {
				t.Fatal(err)
			}
		},
	} {
		l := tryAll(t, c, []string{"a", "b", "c"})
		work, cancel := l.WithContext(t.Context())
		lose(l)
		within(t, 10*time.Second, what, l.Done())
		within(t, 10*time.Second, what, work.Done())
		cancel()
		var lost *pglock.LostError
		if err := context.Cause(work); !errors.As(err, &lost) || lost.Name != "b" || lost.Token != l.Token() || !errors.Is(l.Err(), pglock.ErrLost) {
			t.Errorf("%s: the context ends with %v, the lease with %v", what, err, l.Err())
		}
		if revoked := strings.HasPrefix(what, "revoked"); revoked != errors.Is(l.Err(), pglock.ErrRevoked) {
			t.Errorf("%s: %v", what, l.Err())
		}
		for _, name := range []string{"a", "c"} {
			_, err := other.TryAcquire(t.Context(), name)
			_ = busyName(t, err, name)
		}
		if err := l.Guard(t.Context(), begin(t, f)); !errors.Is(err, fencing.ErrStale) || !errors.Is(err, pglock.ErrLost) {
			t.Errorf("%s: Guard: %v", what, err)
		}
		if err := l.Release(t.Context()); !errors.Is(err, pglock.ErrLost) {
			t.Errorf("%s: Release: %v", what, err)
		}
		for _, name := range []string{"a", "c"} {
			release(t, try(t, other, name))
		}
		f.sql("UPDATE pglock.distributed_locks SET holder = NULL, expires_at = '-infinity' WHERE name = 'b'")
	}
}

// TestALostLeaseOfAllExpires: the names that are left are not renewed.
func TestALostLeaseOfAllExpires(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.open(pglock.WithTTL(time.Second))
	l := tryAll(t, c, []string{"a", "b"})
	f.sql("UPDATE pglock.distributed_locks SET holder = NULL, expires_at = '-infinity' WHERE name = 'b'")
	within(t, 10*time.Second, "the loss", l.Done())
	other, err := f.open().Acquire(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	release(t, other)
}

// TestALeaseOfAllLives: it is renewed, extended, asked to be released, and closed like any other.
func TestALeaseOfAllLives(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.openUnclosed(pglock.WithTTL(600 * time.Millisecond))
	l := tryAll(t, c, []string{"a", "b"})
	first := l.Deadline()
	pgtest.Eventually(t, 20*time.Second, "renewals", func() bool {
		return value[int](f, "SELECT count(*) FROM pglock.distributed_locks WHERE version > 3") == 2
	})
	if !l.Deadline().After(first) || l.Err() != nil {
		t.Errorf("the deadline was %v, is %v, and the lease %v", first, l.Deadline(), l.Err())
	}
	if err := l.Extend(t.Context(), time.Minute); err != nil || time.Until(l.Deadline()) < 59*time.Second {
		t.Errorf("Extend: %v, %v remain", err, time.Until(l.Deadline()))
	}
	requested := l.ReleaseRequested()
	if err := f.open().RequestRelease(t.Context(), "b", l.Token(), "a deployment"); err != nil {
		t.Fatal(err)
	}
	within(t, 20*time.Second, "the request", requested)
	if l.ReleaseReason() != "a deployment" || l.Err() != nil {
		t.Errorf("the reason is %q, the lease %v", l.ReleaseReason(), l.Err())
	}
	if err := l.SetLabels(t.Context(), map[string]string{"k": "v"}); err != nil {
		t.Error(err)
	}
	if n := value[int](f, "SELECT count(*) FROM pglock.distributed_locks WHERE labels = '{\"k\": \"v\"}'"); n != 2 {
		t.Errorf("%d of 2 names have the labels", n)
	}
	if _, err := l.HandOver(); err == nil || l.Err() != nil {
		t.Errorf("HandOver: %v, %v", err, l.Err())
	}
	if err := c.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(l.Err(), pglock.ErrClosed) || !errors.Is(context.Cause(l.Context()), pglock.ErrReleased) {
		t.Errorf("after Close the lease is %v", l.Err())
	}
	release(t, tryAll(t, f.open(), []string{"a", "b"}))
}

// TestI4_GuardOfAll: one guard holds all names. A transaction that began it keeps every name from the
// next holder, and none can begin after a name is gone.
func TestI4_GuardOfAll(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c, other := f.open(), f.open()
	for what, guard := range map[string]func(*pglock.Lease, context.Context, fencing.Tx) error{
		"Guard": (*pglock.Lease).Guard, "Bind": (*pglock.Lease).Bind,
	} {
		l := tryAll(t, c, []string{"a", "b"})
		tx := begin(t, f)
		if err := guard(l, t.Context(), tx); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		release(t, l)
		for _, name := range l.Names() {
			_, err := other.TryAcquire(t.Context(), name)
			_ = busyName(t, err, name)
		}
		_, err := locktest.All(other, l.Names()...).TryAcquire(t.Context())
		if !errors.Is(err, pglock.ErrNotAcquired) {
			t.Errorf("%s: names in use: %v", what, err)
		}
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		l = tryAll(t, other, l.Names())
		fences := l.Fences()
		f.sql("UPDATE pglock.distributed_locks SET holder = NULL, expires_at = '-infinity' WHERE name = 'b'")
		var stale *fencing.StaleError
		tx = begin(t, f)
		if err := guard(l, t.Context(), tx); !errors.As(err, &stale) || stale.Resource != "b" || stale.Token != l.Token() {
			t.Errorf("%s without one of the names: %v", what, err)
		}
		_ = tx.Rollback(t.Context())
		tx = begin(t, f)
		if err := fencing.CheckAll(t.Context(), tx, fences...); !errors.As(err, &stale) || stale.Resource != "b" {
			t.Errorf("CheckAll without one of the names: %v", err)
		}
		_ = tx.Rollback(t.Context())
		_ = l.Release(t.Context())
	}
}

// TestNestedAcquireOfAll: a call whose context holds one of the names is refused, or joins if the lease
// has all of them.
func TestNestedAcquireOfAll(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c, other := f.open(), f.open()
	outer := tryAll(t, c, []string{"a", "b", "c"})
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
				tx := begin(t, f)
				return errors.Join(joined.Guard(ctx, tx), tx.Rollback(ctx))
			}, pglock.WithJoin())
			if err != nil || outer.Err() != nil {
				t.Errorf("joined: %v, %v", err, outer.Err())
			}
		}
	}
	more := tryAllIn(ctx, t, c, []string{"x", "y"})
	if err := outer.Err(); err != nil {
		t.Error(err)
	}
	release(t, more)
	release(t, outer)

	single := try(t, c, "a")
	if err := locktest.All(c, "a", "b").Do(single.Context(), never, pglock.WithJoin()); !errors.Is(err, pglock.ErrHeldByCaller) {
		t.Errorf("a lease of one name was joined for two: %v", err)
	}
	release(t, single)
}

func tryAllIn(ctx context.Context, t *testing.T, c *pglock.Client, names []string) *pglock.Lease {
	t.Helper()
	l, err := locktest.All(c, names...).TryAcquire(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// TestARepeatedRequestForAll: an attempt whose answer was lost finds its grant again. If a part of that
// grant has ended, the rest is released, and the request is used up.
func TestARepeatedRequestForAll(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	attempt := func(ticket int64) (outcome string, token int64) {
		t.Helper()
		err := f.pool.QueryRow(t.Context(), f.named(`SELECT outcome, token FROM pglock.acquire_slots(
			'{a,b}', '{NULL,NULL}', '{1,1}', '5a1f0e2c-7a34-4a0e-8f77-0f6b2a3a4d5e', 'h', '{}', 60000000, $1, true)`), ticket).Scan(&outcome, &token)
		if err != nil {
			t.Fatal(err)
		}
		return outcome, token
	}
	const noTicket = 1<<63 - 1
	outcome, token := attempt(noTicket)
	if outcome != "granted" {
		t.Fatal(outcome)
	}
	if again, same := attempt(noTicket); again != "granted" || same != token {
		t.Errorf("repeated: %s, the tokens are %d and %d", again, token, same)
	}
	f.sql("UPDATE pglock.distributed_locks SET holder = NULL, expires_at = '-infinity' WHERE name = 'b'")
	if outcome, _ := attempt(noTicket); outcome != "spent" {
		t.Errorf("after a part of its grant has ended, the request is %s", outcome)
	}
	if held := value[string](f, "SELECT string_agg(name, ' ') FROM pglock.distributed_locks WHERE holder IS NOT NULL"); held != "a" {
		t.Errorf("held: %s", held)
	}
}

// TestAcquireAllWaitsForNoRow: a row that another transaction has locked is busy.
func TestI11_AcquireAllWaitsForNoRow(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.open()
	release(t, tryAll(t, c, []string{"a", "b"}))
	tx := begin(t, f)
	if _, err := tx.Exec(t.Context(), f.named("SELECT FROM pglock.distributed_locks WHERE name = 'b' FOR UPDATE")); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if _, err := locktest.All(c, "a", "b").TryAcquire(t.Context()); !errors.Is(err, pglock.ErrNotAcquired) {
		t.Errorf("a locked row: %v", err)
	}
	if took := time.Since(began); took > time.Second {
		t.Errorf("it took %v to find a locked row", took)
	}
	release(t, try(t, c, "a"))
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	release(t, tryAll(t, c, []string{"a", "b"}))
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
	release(t, grantedSoon(t, got))
}

// TestEventsOfAll: each name has its events.
func TestEventsOfAll(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	seen := &allEvents{}
	c := f.open(pglock.WithObserver(seen))
	b := try(t, f.open(pglock.WithHolder("B")), "b")
	got := f.waitsForAll(c, "a", "b")
	// With its ticket it tries once more, and then it waits.
	pgtest.Eventually(t, 10*time.Second, "it says so", func() bool { return len(seen.get()) == 2 })
	release(t, b)
	release(t, grantedSoon(t, got))
	want := []string{"wait a 2 ", "wait b 2 B", "granted a 2", "granted b 2", "released a", "released b"}
	pgtest.Eventually(t, 10*time.Second, "the events", func() bool { return len(seen.get()) >= len(want) })
	have := seen.get()
	slices.Sort(have[len(have)-2:])
	if !slices.Equal(have, want) {
		t.Errorf("the events are %q, want %q", have, want)
	}
}

// allEvents records events as text.
type allEvents struct {
	pglock.NopObserver
	mu   sync.Mutex
	text []string
}

func (e *allEvents) add(format string, args ...any) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.text = append(e.text, fmt.Sprintf(format, args...))
}

func (e *allEvents) get() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.text)
}

func (e *allEvents) ObserveWait(_ context.Context, ev pglock.WaitEvent) {
	e.add("wait %s %d %s", ev.Name, ev.Together, ev.Holder)
}

func (e *allEvents) ObserveAcquire(_ context.Context, ev pglock.AcquireEvent) {
	e.add("%s %s %d", ev.Outcome, ev.Name, ev.Together)
}

func (e *allEvents) ObserveRelease(_ context.Context, ev pglock.ReleaseEvent) {
	e.add("released %s", ev.Name)
}

// TestP37_NoDeadlock: callers of overlapping names, in all orders, all get through. The control acquires
// one name after the other, and nobody gets through.
func TestP37_NoDeadlock(t *testing.T) {
	t.Parallel()
	const seats, rounds = 5, 10
	f := newFixture(t)
	c := []*pglock.Client{f.open(), f.open()}
	name := func(seat int) string { return fmt.Sprint("seat ", seat%seats) }
	var wg sync.WaitGroup
	for i := range seats {
		wg.Go(func() {
			for range rounds {
				names := []string{name(i), name(i + 1)}
				if i%2 == 0 {
					slices.Reverse(names)
				}
				l, err := locktest.All(c[i%2], names...).Acquire(t.Context(), pglock.WithWait(time.Minute))
				if err != nil {
					t.Error(err)
					return
				}
				if err := l.Release(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()

	var first sync.WaitGroup
	first.Add(seats)
	through := make(chan int, seats)
	for i := range seats {
		wg.Go(func() {
			l, err := c[i%2].Acquire(t.Context(), name(i))
			first.Done()
			if err != nil {
				t.Error(err)
				return
			}
			first.Wait()
			if second, err := c[i%2].Acquire(t.Context(), name(i+1), pglock.WithWait(500*time.Millisecond)); err == nil {
				through <- i
				_ = second.Release(t.Context())
			}
			rest(t, 600*time.Millisecond) // the others give up while it holds
			_ = l.Release(t.Context())
		})
	}
	wg.Wait()
	if len(through) > 0 {
		t.Errorf("control: %d callers got through one name after the other", len(through))
	}
}
