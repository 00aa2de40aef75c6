package advisory_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/pgtx"
)

// TestP30_PollingLetsIndexesBeBuilt: while a transaction waits for the lock, the holder builds an
// index concurrently, which waits for all snapshots. A poller holds none.
func TestP30_PollingLetsIndexesBeBuilt(t *testing.T) {
	t.Parallel()
	built, waited := buildIndexUnderLock(t, advisory.WithPolling())
	if built != nil {
		t.Errorf("CREATE INDEX CONCURRENTLY: %v", built)
	}
	if waited != nil {
		t.Errorf("the waiter, after it: %v", waited)
	}
}

// TestP30_PollingLetsIndexesBeBuiltControl blocks in the server: the two wait for each other.
func TestP30_PollingLetsIndexesBeBuiltControl(t *testing.T) {
	t.Parallel()
	built, waited := buildIndexUnderLock(t)
	if err := errors.Join(built, waited); err == nil {
		t.Error("no deadlock: then polling shows nothing either")
	} else if !errors.Is(waited, advisory.ErrDeadlock) && pgtx.SQLState(built) != "40P01" {
		t.Errorf("the index: %v; the waiter: %v", built, waited)
	}
}

func buildIndexUnderLock(t *testing.T, opts ...advisory.LockOption) (built, waited error) {
	t.Helper()
	// A database of its own: the build waits for every snapshot in it.
	pool := pgtest.PoolOn(t, pgtest.Database(t))
	key := advisory.KeyFromInt64(30)
	conn, err := pgx.Connect(t.Context(), pool.Config().ConnString())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	for _, sql := range []string{"CREATE TABLE stock (id int)", "SELECT pg_advisory_lock(30)"} {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	tx := begin(t, pool)
	result := make(chan error, 1)
	ctx := soon(t, time.Minute)
	go func() {
		err := advisory.Lock(ctx, tx, key, opts...)
		// The build waits for the end of a transaction that had a snapshot.
		result <- errors.Join(err, tx.Rollback(context.Background()))
	}()
	pgtest.Eventually(t, 10*time.Second, "the waiter tries the lock", func() bool {
		return len(opts) > 0 && count(t, pool, "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction' AND query LIKE '%pg_try_advisory%'") == 1 ||
			len(opts) == 0 && waitsFor(t, pool, key) == 1
	})
	_, built = conn.Exec(soon(t, 30*time.Second), "CREATE INDEX CONCURRENTLY ON stock (id)")
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
		"Do, polling": func(ctx context.Context, pool *pgxpool.Pool, key advisory.Key) error {
			return advisory.Do(ctx, pool, key, noWork, advisory.WithTimeout(timeout), advisory.WithPolling())
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
			if err != nil {
				t.Fatal(err)
			}
			before := holder(t, direct, key)
			time.AfterFunc(timeout+300*time.Millisecond, conn.Release)
			result := make(chan error, 1)
			go func() { result <- call(soon(t, time.Minute), pool, key) }()
			<-time.After(timeout + 600*time.Millisecond)
			if err := before.Rollback(t.Context()); err != nil {
				t.Error(err)
			}
			if err := <-result; err != nil {
				t.Error(err)
			}
		})
	}
}
