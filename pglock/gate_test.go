package pglock_test

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
)

// TestI11_P69_GuardedGatesCostNoConnection: eight names with permits are released, and guarded
// transactions of their last holders go on. Callers that wait for these names let no statement wait for
// a row, so another lock of the client is granted at once. The control is a statement that waits.
func TestI11_P69_GuardedGatesCostNoConnection(t *testing.T) {
	t.Parallel()
	const names, pairs = 8, 100
	f := on(t, pgtest.Database(t))
	f.pool = pgtest.PoolOn(t, f.pool.Config().ConnString(), func(c *pgxpool.Config) { c.MaxConns = names + 4 })
	holder, c := f.open(), f.open()
	const blocked = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var waiting sync.WaitGroup
	for i := range names {
		name := "rw" + strconv.Itoa(i)
		l := write(t, rwlock(holder, name))
		if err := l.Guard(t.Context(), begin(t, f)); err != nil {
			t.Fatal(err)
		}
		release(t, l)
		waiting.Go(func() {
			if _, err := rwlock(c, name).read.Acquire(ctx); !errors.Is(err, context.Canceled) {
				t.Errorf("beside a guarded transaction: %v", err)
			}
		})
	}
	f.waiters(names)
	stalled := 0
	times := make([]time.Duration, pairs)
	for i := range times {
		began := time.Now()
		release(t, acquire(t, c, "other"))
		times[i] = time.Since(began)
		stalled += value[int](f, blocked)
	}
	slices.Sort(times)
	t.Logf("a pair of another lock took %v (p50), %v (longest)", times[pairs/2], times[pairs-1])
	if stalled > 0 {
		t.Errorf("%d times a statement of the client waited for a row", stalled)
	}
	cancel()
	waiting.Wait()

	control := begin(t, f)
	if _, err := control.Exec(t.Context(), f.named("SELECT FROM pglock.distributed_locks WHERE name = 'rw0' FOR NO KEY UPDATE")); err != nil {
		t.Fatal(err)
	}
	other := begin(t, f)
	ended := make(chan error)
	go func() {
		_, err := other.Exec(t.Context(), f.named("UPDATE pglock.distributed_locks SET version = version WHERE name = 'rw0'"))
		ended <- err
	}()
	pgtest.Eventually(t, 10*time.Second, "the control waits", func() bool { return value[int](f, blocked) == 1 })
	if err := errors.Join(control.Rollback(t.Context()), <-ended); err != nil {
		t.Error(err)
	}
}

// TestAReaderMeetsTheGuardOfTheLastWriter: it is granted the lock when the guarded transaction has
// ended, and a try before that says that the lock is busy.
func TestAReaderMeetsTheGuardOfTheLastWriter(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	holder, c := f.open(), f.open(pglock.WithPollOnly())
	w := write(t, rwlock(holder, "rw"))
	tx := begin(t, f)
	if err := w.Guard(t.Context(), tx); err != nil {
		t.Fatal(err)
	}
	release(t, w)
	for range 10 {
		if l, err := rwlock(c, "rw").read.TryAcquire(t.Context()); !errors.Is(err, pglock.ErrNotAcquired) {
			t.Fatalf("beside a guarded transaction: %v, %v", l, err)
		}
	}
	got := make(chan *pglock.Lease)
	go func() {
		l, err := rwlock(c, "rw").read.Acquire(t.Context())
		check(t, err)
		got <- l
	}()
	f.waiters(1)
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	release(t, <-got)
}
