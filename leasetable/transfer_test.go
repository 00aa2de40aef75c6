package leasetable_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/leasetable"
)

// queued starts an Acquire, and returns when others see its ticket.
func (f fixture) queued(ctx context.Context, c *leasetable.Client, name, holder string, opts ...leasetable.LeaseOption) <-chan *leasetable.Lease {
	f.t.Helper()
	got := make(chan *leasetable.Lease, 1)
	go func() {
		l, err := c.Acquire(ctx, name, append(opts, leasetable.WithHolder(holder))...)
		if err != nil && ctx.Err() == nil {
			f.t.Errorf("Acquire as %s: %v", holder, err)
		}
		got <- l
	}()
	pgtest.Eventually(f.t, 10*time.Second, holder+" is in the queue", func() bool {
		return value[bool](f, "SELECT EXISTS (SELECT FROM pglock.lock_waiters WHERE name = $1 AND holder = $2 AND ticket > 0)", name, holder)
	})
	return got
}

// begin returns a transaction that is rolled back at the end of the test.
func (f fixture) begin() pgx.Tx {
	f.t.Helper()
	tx, err := f.pool.Begin(f.t.Context())
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	return tx
}

// got waits for the lease of a waiter.
func got(t *testing.T, c <-chan *leasetable.Lease) *leasetable.Lease {
	t.Helper()
	select {
	case l := <-c:
		if l == nil {
			t.Fatal("no lease")
		}
		return l
	case <-time.After(10 * time.Second):
		t.Fatal("no lease within 10 s")
	}
	return nil
}

// TestTransferOvertakesTheQueue: the named waiter gets the lock with a new token, the labels and the
// TTL of its own call, and the others wait on.
func TestTransferOvertakesTheQueue(t *testing.T) {
	t.Parallel()
	for _, options := range [][]leasetable.Option{nil, {leasetable.WithPollOnly()}, {leasetable.WithBatches(8, true)}} {
		t.Run(fmt.Sprint(len(options), " options"), func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			first := f.open(options...)
			l := try(t, first, "n")
			a := f.queued(t.Context(), f.open(options...), "n", "a")
			b := f.queued(t.Context(), f.open(options...), "n", "b", leasetable.WithTTL(time.Hour), leasetable.WithLabel("of", "b"))
			if err := l.Transfer(t.Context(), "b"); err != nil {
				t.Fatal(err)
			}
			if err := l.Err(); !errors.Is(err, leasetable.ErrReleased) {
				t.Errorf("the lease after its transfer: %v", err)
			}
			lb := got(t, b)
			k, err := first.Get(t.Context(), "n")
			if err != nil || k.Token != lb.Token() || k.Token <= l.Token() || k.Holder != "b" || k.Labels["of"] != "b" ||
				k.Remaining < 59*time.Minute || k.Last.End != leasetable.EndReleased || len(k.Waiters) != 1 || k.Waiters[0].Holder != "a" {
				t.Errorf("after the transfer: %+v, %v", k, err)
			}
			if err := errors.Join(lb.Extend(t.Context(), time.Hour), l.Release(t.Context())); err != nil {
				t.Error(err)
			}
			if err := fencing.Check(t.Context(), f.begin(), l.Fence()); !errors.Is(err, fencing.ErrStale) {
				t.Errorf("the old fence: %v", err)
			}
			if err := lb.Transfer(t.Context(), ""); err != nil { // the first one
				t.Fatal(err)
			}
			release(t, got(t, a))
			if rows := value[int](f, "SELECT count(*) FROM pglock.lock_waiters AS w JOIN pglock.distributed_locks AS l USING (name) WHERE w.ticket > l.ticket"); rows != 0 {
				t.Errorf("%d valid tickets are left", rows)
			}
		})
	}
}

// TestReleaseAndTransferUnderTheLeasesOwnContext, which ends first: they return when they are done.
func TestReleaseAndTransferUnderTheLeasesOwnContext(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c, other := f.open(), f.open()
	for range 20 {
		l := try(t, c, "n")
		ctx, stop := l.WithContext(t.Context())
		if err := l.Release(ctx); err != nil {
			t.Errorf("Release: %v", err)
		}
		stop()
	}
	l := try(t, c, "n")
	waiter := f.queued(t.Context(), other, "n", "a")
	ctx, stop := l.WithContext(t.Context())
	defer stop()
	if err := l.Transfer(ctx, "a"); err != nil {
		t.Errorf("Transfer: %v", err)
	}
	release(t, got(t, waiter))
}

// TestTransferWithoutAWaiter changes nothing.
func TestTransferWithoutAWaiter(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.open()
	l := try(t, c, "n")
	for _, to := range []string{"", "nobody"} {
		if err := l.Transfer(t.Context(), to); !errors.Is(err, leasetable.ErrNoWaiter) {
			t.Errorf("transfer to %q: %v", to, err)
		}
	}
	waiter := f.queued(t.Context(), f.open(), "n", "a")
	if err := l.Transfer(t.Context(), "b"); !errors.Is(err, leasetable.ErrNoWaiter) {
		t.Errorf("transfer to another than the waiter: %v", err)
	}
	if err := l.Transfer(t.Context(), "\x00"); !errors.Is(err, leasetable.ErrInvalidOption) {
		t.Errorf("transfer to an invalid name: %v", err)
	}
	if err := l.Err(); err != nil {
		t.Errorf("the lease after refused transfers: %v", err)
	}
	release(t, l)
	if err := l.Transfer(t.Context(), "a"); !errors.Is(err, leasetable.ErrReleased) {
		t.Errorf("transfer of a released lease: %v", err)
	}
	release(t, got(t, waiter))
}

// TestTransferToADeadWaiter: the grant that nobody confirms lasts for 1.5 s, and then the queue goes on.
func TestTransferToADeadWaiter(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	l := try(t, f.open(), "n")
	f.sql(`INSERT INTO pglock.lock_waiters (name, client, expires_at, holder, request)
		VALUES ('n', 'pglock_dead', clock_timestamp() + interval '1 min', 'dead', gen_random_uuid())`)
	next := f.queued(t.Context(), f.open(), "n", "next")
	began := time.Now()
	if err := l.Transfer(t.Context(), "dead"); !errors.Is(err, leasetable.ErrNoWaiter) {
		t.Errorf("a transfer to a dead waiter: %v", err)
	}
	if err := l.Err(); !errors.Is(err, leasetable.ErrReleased) {
		t.Errorf("the lease: %v", err)
	}
	release(t, l)
	n := got(t, next)
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("the next waiter came after %v", took)
	}
	release(t, n)
}

// TestTransferToACallerThatInheritedATicket: the first caller of a process has drawn the ticket, and
// leaves. The second one owns it then.
func TestTransferToACallerThatInheritedATicket(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	l := try(t, f.open(), "n")
	process := f.open(leasetable.WithPollOnly())
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	f.queued(ctx, process, "n", "first")
	second := make(chan *leasetable.Lease, 1)
	go func() {
		l, err := process.Acquire(t.Context(), "n", leasetable.WithHolder("second"))
		if err != nil {
			t.Error(err)
		}
		second <- l
	}()
	pgtest.Eventually(t, 10*time.Second, "two callers wait", func() bool { return leasetable.Waiting(process, "n") == 2 })
	leave()
	pgtest.Eventually(t, 10*time.Second, "the second caller owns the ticket", func() bool {
		return value[bool](f, "SELECT EXISTS (SELECT FROM pglock.lock_waiters WHERE name = 'n' AND holder = 'second')")
	})
	if err := l.Transfer(t.Context(), "second"); err != nil {
		t.Fatal(err)
	}
	release(t, got(t, second))
}

// TestTransferWithinAGuard: an open guarded transaction of the holder keeps the lock from the waiter,
// however it is meant to get it.
func TestTransferWithinAGuard(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	l := try(t, f.open(), "n")
	waiter := f.queued(t.Context(), f.open(), "n", "a")
	tx := f.begin()
	if err := l.Guard(t.Context(), tx); err != nil {
		t.Fatal(err)
	}
	if err := l.Transfer(t.Context(), "a"); !errors.Is(err, leasetable.ErrNoWaiter) {
		t.Errorf("a transfer within a guard: %v", err)
	}
	rest(t, 100*time.Millisecond)
	select {
	case <-waiter:
		t.Error("the waiter got the lock during the guarded transaction")
	default:
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Error(err)
	}
	release(t, got(t, waiter))
}

// TestTransferIsForLocksWithOneHolder, and for the lease that holds the grant.
func TestTransferIsForLocksWithOneHolder(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.open()
	s, err := c.Semaphore("s", 2)
	if err != nil {
		t.Fatal(err)
	}
	permit, err := s.Acquire(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := permit.Transfer(t.Context(), ""); !errors.Is(err, fencing.ErrShared) {
		t.Errorf("a permit: %v", err)
	}
	if err := permit.SetLabels(t.Context(), map[string]string{"a": "b"}); !errors.Is(err, fencing.ErrShared) {
		t.Errorf("the labels of a permit: %v", err)
	}
	release(t, permit)
	l := try(t, c, "n")
	joined, err := c.Acquire(l.Context(), "n", leasetable.WithJoin())
	if err != nil {
		t.Fatal(err)
	}
	if err := joined.Transfer(t.Context(), ""); err == nil || l.Err() != nil {
		t.Errorf("a joined lease: %v, %v", err, l.Err())
	}
	release(t, joined)
	release(t, l)
}

// TestSetLabels: labels are added and replaced, those who watch see them at once, and only the current
// grant can change them.
func TestSetLabels(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c, operator := f.open(), f.open()
	w := f.watch(t.Context(), operator, "n")
	w.sees("")
	pgtest.Eventually(t, 10*time.Second, "it listens", func() bool { return leasetable.Listening(operator) })
	l := try(t, c, "n", leasetable.WithHolder("h"), leasetable.WithLabels(map[string]string{"a": "1"}), leasetable.WithLabel("b", "1"), leasetable.WithAnnounce())
	w.sees("h")
	var late time.Duration
	const n = 20
	for i := range n {
		if err := l.SetLabels(t.Context(), map[string]string{"b": fmt.Sprint(i), "c": "3"}); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		w.sees("h")
		late += time.Since(began)
	}
	if late/n > 300*time.Millisecond { // 500 ms by polling
		t.Errorf("labels are seen after %v", late/n)
	}
	k, err := c.Get(t.Context(), "n")
	if err != nil || len(k.Labels) != 3 || k.Labels["a"] != "1" || k.Labels["b"] != fmt.Sprint(n-1) || k.Token != l.Token() {
		t.Errorf("%+v, %v", k, err)
	}
	big := map[string]string{"big": strings.Repeat("x", 10_000)}
	if err := l.SetLabels(t.Context(), big); err != nil {
		t.Error(err)
	}
	big["more"], big["big"] = big["big"], "y"
	delete(big, "big")
	for what, labels := range map[string]map[string]string{"together": big, "NUL": {"a": "\x00"}, "UTF-8": {"\xff": ""}} {
		if err := l.SetLabels(t.Context(), labels); !errors.Is(err, leasetable.ErrInvalidOption) {
			t.Errorf("%s: %v", what, err)
		}
	}
	f.sql("UPDATE pglock.distributed_locks SET token = token + 1000")
	if err := l.SetLabels(t.Context(), nil); !errors.Is(err, fencing.ErrStale) {
		t.Errorf("a stale grant: %v", err)
	}
	_ = l.Release(t.Context()) // its grant is gone
	if err := l.SetLabels(t.Context(), nil); err == nil {
		t.Error("an ended lease: no error")
	}
}

// TestAnnounce: watchers see a grant with WithAnnounce sooner than by polling.
func TestAnnounce(t *testing.T) {
	t.Parallel()
	for _, announced := range []bool{true, false} {
		t.Run(fmt.Sprint("announced ", announced), func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			c, operator := f.open(), f.open()
			w := f.watch(t.Context(), operator, "n")
			w.sees("")
			pgtest.Eventually(t, 10*time.Second, "it listens", func() bool { return leasetable.Listening(operator) })
			var late time.Duration
			const n = 5
			for i := range n {
				opts := []leasetable.LeaseOption{leasetable.WithHolder(fmt.Sprint(i))}
				if announced {
					opts = append(opts, leasetable.WithAnnounce())
				}
				seen := make(chan time.Time, 1)
				go func() {
					_, _, _ = w.next()
					seen <- time.Now()
				}()
				rest(t, 800*time.Millisecond) // the pauses between reads of a free lock have grown
				l := try(t, c, "n", opts...)
				began := time.Now()
				late += (<-seen).Sub(began)
				release(t, l)
				w.sees("")
			}
			t.Logf("a grant is seen after %v on average", late/n)
			if announced != (late/n < 50*time.Millisecond) {
				t.Errorf("announced %v: a grant is seen after %v on average", announced, late/n)
			}
		})
	}
}
