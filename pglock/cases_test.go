package pglock_test

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
)

// kinds are the kinds of locks that one caller holds alone. Their names contain "n", or are "n" and "m".
var kinds = map[string]func(c *pglock.Client) pglock.Lock{
	"one holder":    func(c *pglock.Client) pglock.Lock { return c.Lock("n") },
	"semaphore":     func(c *pglock.Client) pglock.Lock { return c.Semaphore("n", 1) },
	"weighted":      func(c *pglock.Client) pglock.Lock { return c.Semaphore("n", 5).Weight(3) },
	"writer":        func(c *pglock.Client) pglock.Lock { return c.Writer("n") },
	"several names": func(c *pglock.Client) pglock.Lock { return c.All(c.Lock("n"), c.Lock("m")) },
	"several kinds": func(c *pglock.Client) pglock.Lock { return c.All(c.Lock("n"), c.Semaphore("m", 3).Weight(2)) },
}

// held acquires a lock that is free for the caller, who may have to wait.
func held(t *testing.T, l pglock.Lock, opts ...pglock.LeaseOption) *pglock.Lease {
	t.Helper()
	ctx := bounded(t, pgtest.Patience)
	lease, err := l.Acquire(ctx, opts...)
	if err != nil {
		t.Fatalf("Acquire(%q): %v", l.Name(), err)
	}
	return lease
}

// isBusy fails the test unless a try finds the lock held.
func isBusy(t *testing.T, what string, l pglock.Lock) {
	t.Helper()
	var busy *pglock.BusyError
	if _, err := l.TryAcquire(t.Context()); !errors.As(err, &busy) || !errors.Is(err, pglock.ErrNotAcquired) {
		t.Fatalf("%s: TryAcquire(%q): %v, want a *BusyError", what, l.Name(), err)
	}
}

// waits acquires the lock in the background, and returns when the caller is in the queue.
func waits(f fixture, l pglock.Lock) <-chan *pglock.Lease {
	f.t.Helper()
	const sql = "SELECT coalesce(max(ticket), 0) FROM pglock.lock_waiters" // not their number: old ones expire meanwhile
	before, got := value[int64](f, sql), async(f.t, l)
	pgtest.Eventually(f.t, "the next waiter", func() bool { return value[int64](f, sql) > before })
	return got
}

// next returns the lease of a waiter.
func next(t *testing.T, got <-chan *pglock.Lease) *pglock.Lease {
	t.Helper()
	select {
	case l := <-got:
		if l == nil {
			t.FailNow()
		}
		return l
	case <-time.After(pgtest.Patience):
		t.Fatal("the waiter is not granted the lock")
		return nil
	}
}

// still fails the test if the waiter has been granted the lock. A look at the tables comes first: by then
// a grant by the statement before has returned.
func still(f fixture, got <-chan *pglock.Lease) {
	f.t.Helper()
	_ = value[int](f, "SELECT count(*) FROM pglock.distributed_locks")
	select {
	case l := <-got:
		f.t.Fatalf("the waiter was granted %q", l.Names())
	default:
	}
}

// peak counts the permits inside, and remembers the highest number.
type peak struct{ now, most atomic.Int64 }

func (p *peak) enter(n int) {
	now := p.now.Add(int64(n))
	for most := p.most.Load(); now > most && !p.most.CompareAndSwap(most, now); most = p.most.Load() {
	}
}

func (p *peak) leave(n int) { p.now.Add(int64(-n)) }

// serverCases are those of lockCases that look at the tables, or at transactions that keep a row
// locked.
var serverCases = []struct {
	name, origin string
	test         func(f fixture, lock func(*pglock.Client) pglock.Lock)
}{
	{"Revoke ends a grant after its guarded transactions", "P63, I4, Co SemaphoreForceInvalidate, D TestCompositeHandleLostToken", func(f fixture, lock func(*pglock.Client) pglock.Lock) {
		operator := f.open()
		l := held(f.t, lock(f.open(pglock.WithTTL(5*time.Second)))) // it learns of it with its next renewal
		waiting := waits(f, lock(f.open()))
		tx := begin(f.t, f)
		must(f.t, l.Guard(f.t.Context(), tx))
		run(f.t, tx, "SET LOCAL idle_in_transaction_session_timeout = 0") // or the server would end it with the lease
		fails(f.t, "beside a guarded transaction", operator.Revoke(f.t.Context(), "n", l.Token(), "nuked"), pglock.ErrGuarded)
		ends(f.t, "the loss", l.Done())
		var lost *pglock.LostError
		if err := l.Err(); !errors.As(err, &lost) || lost.Name != "n" || !errors.Is(err, pglock.ErrRevoked) || !strings.Contains(err.Error(), "nuked") {
			f.t.Errorf("%v", err)
		}
		fails(f.t, "a guard after it", fencing.CheckAll(f.t.Context(), begin(f.t, f), l.Fences()...), fencing.ErrStale)
		_ = l.Release(f.t.Context()) // it was lost
		still(f, waiting)
		must(f.t, tx.Commit(f.t.Context()))
		check(f.t, operator.Revoke(f.t.Context(), "n", l.Token(), "nuked"))
		release(f.t, next(f.t, waiting))
		fails(f.t, "no grant", operator.Revoke(f.t.Context(), "n", 1<<40, ""), fencing.ErrStale)
	}},
	{"a lease without its row is lost", "Co SemaphoreDeleteKey, Cu testSomeReleasesFail", func(f fixture, lock func(*pglock.Client) pglock.Lock) {
		l := held(f.t, lock(f.open(pglock.WithTTL(time.Second))))
		f.sql("DELETE FROM pglock.lock_permits")
		f.sql("DELETE FROM pglock.distributed_locks WHERE name = 'n' OR capacity IS NOT NULL")
		ends(f.t, "the loss", l.Done())
		fails(f.t, "the lease", l.Err(), pglock.ErrLost)
		fails(f.t, "Release", l.Release(f.t.Context()), pglock.ErrLost)
		release(f.t, held(f.t, lock(f.open()), pglock.WithWait(20*time.Second)))
	}},
	{"an idle name is pruned, one in use is not", "Cu testChildReaperCleansUpLockNodes, Co SemaphoreDestroy", func(f fixture, lock func(*pglock.Client) pglock.Lock) {
		c := f.open(pglock.WithRetention(0))
		prune := func() int64 {
			f.sql("UPDATE pglock.distributed_locks SET acquired_at = clock_timestamp() - interval '1 hour', ended_at = clock_timestamp() - interval '1 hour'")
			n, err := c.Prune(f.t.Context(), time.Minute)
			check(f.t, err)
			return n
		}
		l := held(f.t, lock(c))
		if n := prune(); n != 0 {
			f.t.Errorf("%d names in use were pruned", n)
		}
		release(f.t, l)
		if n, want := prune(), int64(len(l.Names())); n != want {
			f.t.Errorf("%d idle names were pruned, want %d", n, want)
		}
	}},
	{"a failed call writes nothing", "I7", func(f fixture, lock func(*pglock.Client) pglock.Lock) {
		other := lock(f.open())
		release(f.t, held(f.t, other))
		l := held(f.t, lock(f.open()))
		before := value[string](f, rowVersions)
		isBusy(f.t, "a held lock", other)
		var busy *pglock.BusyError
		if _, err := other.Acquire(f.t.Context(), pglock.WithWait(0)); !errors.As(err, &busy) || errors.As(err, new(*pglock.WaitError)) {
			f.t.Errorf("Acquire without a wait: %v", err)
		}
		if after := value[string](f, rowVersions); after != before {
			f.t.Errorf("a failed call changed or locked rows: %s, before %s", after, before)
		}
		f.none("rows in the queue", "SELECT count(*) FROM pglock.lock_waiters")
		release(f.t, l)

		// It would keep the head of the queue, for whom the lock is free, from the row.
		f.sql(`INSERT INTO pglock.lock_waiters (name, client, weight, expires_at, keep_until)
			VALUES ('n', 'head', 1 << 30, clock_timestamp() + interval '1 h', clock_timestamp() + interval '50 s')`)
		before = value[string](f, rowVersions)
		isBusy(f.t, "a free lock with a queue", other)
		if after := value[string](f, rowVersions); after != before {
			f.t.Errorf("a call behind a queue changed or locked rows: %s, before %s", after, before)
		}
		f.sql("DELETE FROM pglock.lock_waiters")
	}},
	{"a guard keeps the lock for its transaction", "I4, I11", func(f fixture, lock func(*pglock.Client) pglock.Lock) {
		c, other := lock(f.open()), lock(f.open())
		for _, end := range []string{"released", "expired"} {
			l := held(f.t, c, pglock.WithTTL(5*time.Second), pglock.WithRenewEvery(0))
			tx := begin(f.t, f)
			must(f.t, l.Guard(f.t.Context(), tx))
			run(f.t, tx, "SET LOCAL idle_in_transaction_session_timeout = 0") // or the server would end it with the lease
			if end == "released" {
				release(f.t, l)
			} else {
				until(f, "the expiry", 0, "SELECT count(*) FROM pglock.locks_held")
			}
			began := time.Now()
			isBusy(f.t, end, other)
			if took := time.Since(began); took > 4*time.Second {
				f.t.Errorf("%s: a try took %v", end, took)
			}
			must(f.t, tx.Commit(f.t.Context()))
			release(f.t, held(f.t, other))
			tx = begin(f.t, f)
			fails(f.t, end+": a guard of an ended grant", fencing.CheckAll(f.t.Context(), tx, l.Fences()...), fencing.ErrStale)
			must(f.t, tx.Rollback(f.t.Context()))
		}
	}},
}

// grants counts what is held or in use. rowVersions changes with each write and lock of a row.
const (
	grants = "SELECT (SELECT count(*) FROM pglock.lock_permits) + " +
		"(SELECT coalesce(sum(in_use), 0) + count(holder) FROM pglock.distributed_locks)"
	rowVersions = "SELECT string_agg(format('%s %s %s', name, xmin, xmax), ', ' ORDER BY name) FROM pglock.distributed_locks"
)

// TestServerCases runs the cases on every kind.
func TestServerCases(t *testing.T) {
	t.Parallel()
	for _, c := range serverCases {
		for kind, lock := range kinds {
			t.Run(fmt.Sprintf("%s/%s", c.name, kind), func(t *testing.T) {
				t.Parallel()
				c.test(newFixture(t), lock)
			})
		}
	}
}

// TestGuardsOfReaders share the lock, and keep a writer out.
func TestGuardsOfReaders(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.open()
	for range 2 {
		l := held(t, c.Reader("n"))
		must(t, l.Guard(t.Context(), begin(t, f)))
		release(t, l)
	}
	isBusy(t, "a writer beside guarded transactions of readers", c.Writer("n"))
	release(t, held(t, c.Reader("n")))
}
