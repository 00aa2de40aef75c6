package advisory_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/pgtx"
)

// TestP30_TriesLetIndexesBeBuilt: the holder builds an index concurrently, which waits for all
// snapshots, while a transaction polls for the lock by TryLock, which leaves none. The control
// blocks in the server, so that the two wait for each other.
func TestP30_TriesLetIndexesBeBuilt(t *testing.T) {
	t.Parallel()
	built, tried := buildIndexUnderLock(t, "state = 'idle in transaction' AND query LIKE '%pg_try_advisory%'", advisory.TryLock)
	if built != nil || !errors.Is(tried, advisory.ErrNotAcquired) {
		t.Errorf("CREATE INDEX CONCURRENTLY: %v; the try: %v", built, tried)
	}
	built, waited := buildIndexUnderLock(t, "wait_event_type = 'Lock' AND wait_event = 'advisory'", func(ctx context.Context, tx advisory.Tx, key advisory.Key) error {
		return advisory.Lock(ctx, tx, key)
	})
	if !errors.Is(waited, advisory.ErrDeadlock) && pgtx.SQLState(built) != "40P01" {
		t.Errorf("control: no deadlock, then the tries show nothing: the index: %v; the waiter: %v", built, waited)
	}
}

// buildIndexUnderLock builds an index while it holds a lock that a transaction wants, whose session
// has been seen in the given state.
func buildIndexUnderLock(t *testing.T, state string, lock func(context.Context, advisory.Tx, advisory.Key) error) (built, waited error) {
	t.Helper()
	// A database of its own: the build waits for every snapshot in it.
	pool := pgtest.PoolOn(t, pgtest.Database(t))
	conn, err := pgx.Connect(t.Context(), pool.Config().ConnString())
	ok(t, err)
	defer conn.Close(context.Background())
	for _, sql := range []string{"CREATE TABLE stock (id int)", "SELECT pg_advisory_lock(30)"} {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	tx := begin(t, pool)
	result := make(chan error, 1)
	over := make(chan struct{})
	go func() {
		err := lock(soon(t, time.Minute), tx, advisory.KeyFromInt64(30))
		if errors.Is(err, advisory.ErrNotAcquired) && !errors.Is(err, advisory.ErrDeadlock) {
			<-over // the transaction stays open, as between two tries
		}
		// The build waits for the end of a transaction that had a snapshot.
		result <- errors.Join(err, tx.Rollback(context.Background()))
	}()
	pgtest.Eventually(t, "the transaction has tried the lock", func() bool {
		return count(t, pool, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND "+state) == 1
	})
	_, built = conn.Exec(soon(t, 30*time.Second), "CREATE INDEX CONCURRENTLY ON stock (id)")
	close(over)
	if _, err := conn.Exec(t.Context(), "SELECT pg_advisory_unlock(30)"); err != nil {
		t.Error(err)
	}
	return built, <-result
}

// TestTimeoutDoesNotCountThePoolsWait: after a wait for a connection that is longer than the
// timeout, the whole timeout is left for the lock.
func TestTimeoutDoesNotCountThePoolsWait(t *testing.T) {
	t.Parallel()
	direct := pgtest.Pool(t)
	const timeout = 2 * time.Second
	for name, call := range map[string]func(ctx context.Context, pool *pgxpool.Pool, key advisory.Key) error{
		"Do": func(ctx context.Context, pool *pgxpool.Pool, key advisory.Key) error {
			return advisory.Do(ctx, pool, key, noWork, advisory.WithTimeout(timeout))
		},
		"Acquire": func(ctx context.Context, pool *pgxpool.Pool, key advisory.Key) error {
			s, err := advisory.Acquire(ctx, pool, key, advisory.WithTimeout(timeout))
			if err != nil {
				return err
			}
			return s.Release(ctx)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			key := advisory.NewKey("pool's wait", t.Name())
			pool := pgtest.Pool(t, func(c *pgxpool.Config) { c.MaxConns = 1 })
			conn, err := pool.Acquire(t.Context())
			ok(t, err)
			before := holder(t, direct, key)
			result, begun := make(chan error, 1), time.Now()
			go func() { result <- call(soon(t, time.Minute), pool, key) }()
			locktest.WaitUntilPast(begun.Add(timeout))
			conn.Release()
			pgtest.Eventually(t, "the call has a connection", func() bool { return pool.Stat().AcquireCount() > 1 })
			ok(t, before.Rollback(t.Context()))
			ok(t, <-result)
		})
	}
}
