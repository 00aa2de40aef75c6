package advisory_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/internal/pgtest"
)

// TestP30_PollingLetsIndexesBeBuilt: while a transaction waits for the lock, its holder builds an index
// concurrently, which waits for all who hold a snapshot. A poller holds none.
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

// TestP30_PollingLetsIndexesBeBuiltControl waits in the server: the two wait for each other.
func TestP30_PollingLetsIndexesBeBuiltControl(t *testing.T) {
	t.Parallel()
	built, waited := buildIndexUnderLock(t)
	if err := errors.Join(built, waited); err == nil {
		t.Error("no deadlock: then polling shows nothing either")
	} else if !errors.Is(waited, advisory.ErrDeadlock) && sqlState(built) != "40P01" {
		t.Errorf("the index: %v; the waiter: %v", built, waited)
	}
}

func buildIndexUnderLock(t *testing.T, opts ...advisory.LockOption) (built, waited error) {
	t.Helper()
	pool := pgtest.PoolOn(t, pgtest.Database(t)) // of its own: the build waits for every snapshot in it
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
		result <- errors.Join(err, tx.Rollback(context.Background())) // a transaction that had a snapshot is waited for as a whole
	}()
	pgtest.Eventually(t, 10*time.Second, "somebody asks for the lock", func() bool {
		return len(opts) > 0 && count(t, pool, "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction' AND query LIKE '%pg_try_advisory%'") == 1 ||
			len(opts) == 0 && waitsFor(t, pool, key) == 1
	})
	_, built = conn.Exec(soon(t, 30*time.Second), "CREATE INDEX CONCURRENTLY ON stock (id)")
	if _, err := conn.Exec(t.Context(), "SELECT pg_advisory_unlock(30)"); err != nil {
		t.Error(err)
	}
	return built, <-result
}
