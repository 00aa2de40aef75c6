package pglock_test

import (
	"errors"
	"fmt"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/pgtx"
	"github.com/pglock/pglock-go/internal/testserver"
	"github.com/pglock/pglock-go/pglock"
)

func TestP16_P39_TTLIsExactByTheServersClock(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.open()
	for _, ttl := range []time.Duration{200 * time.Millisecond, 900 * time.Millisecond, 1500*time.Millisecond + time.Microsecond, 30 * time.Second} {
		name := ttl.String()
		l := try(t, c, name, pglock.WithTTL(ttl), pglock.WithRenewEvery(0))
		// Both times are the server's, taken in one row a few microseconds apart.
		got := time.Duration(value[int64](f, "SELECT (extract(epoch FROM expires_at - acquired_at) * 1000000)::bigint FROM pglock.distributed_locks WHERE name = $1", name)) * time.Microsecond
		if got < ttl || got > ttl+100*time.Millisecond {
			t.Errorf("a TTL of %v became %v", ttl, got)
		}
		if ttl < time.Second {
			continue
		}
		if _, err := c.TryAcquire(t.Context(), name); !errors.Is(err, pglock.ErrNotAcquired) {
			t.Errorf("TTL %v: a second try got %v", ttl, err)
		}
		release(t, l)
	}
}

// TestP21_LosingWritesNothing counts WAL on a server without other writers.
func TestP21_LosingWritesNothing(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t, testserver.Options{Settings: map[string]string{
		"autovacuum": "off", "wal_level": "minimal", "max_wal_senders": "0", "checkpoint_timeout": "1h",
	}})
	f := on(t, server.URL())
	c := f.open(pglock.WithTTL(time.Hour))
	held := try(t, c, "n")
	written := func(what func()) int64 {
		before := value[string](f, "SELECT pg_current_wal_insert_lsn()::text")
		what()
		return value[int64](f, "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), $1::pg_lsn)::bigint", before)
	}
	written(func() { _, _ = c.TryAcquire(t.Context(), "n") }) // hint bits of the catalog
	const tries = 200
	if n := written(func() {
		for range tries {
			fails(t, "told", second(c.TryAcquire(t.Context(), "n")), pglock.ErrNotAcquired)
		}
	}); n != 0 {
		t.Errorf("%d failed tries wrote %d bytes of WAL", tries, n)
	}
	// The control: the WAL of an upsert with a condition that loses.
	if n := written(func() {
		for range tries {
			f.sql(`INSERT INTO pglock.distributed_locks AS l (name, token, version, holder, acquired_at, expires_at)
			       VALUES ('n', 1000, 1, 'x', now(), now()) ON CONFLICT (name) DO UPDATE SET holder = 'x'
			       WHERE l.expires_at < clock_timestamp()`)
		}
	}); n == 0 {
		t.Error("control: the naive upsert wrote nothing either")
	}
	release(t, held)
}

// TestP38_StricterIsolationDoesNotHurt runs on a database whose default isolation is SERIALIZABLE.
func TestP38_StricterIsolationDoesNotHurt(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	admin := on(t, url)
	admin.sql(`DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_isolation TO serializable', current_database()); END $$`)
	config, statements := admin.pool.Config().Copy(), &spy{}
	config.ConnConfig.Tracer = statements
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	must(t, err)
	t.Cleanup(pool.Close)
	f := fixture{t, pool, admin.schema}
	if level := value[string](f, "SHOW default_transaction_isolation"); level != "serializable" {
		t.Fatal(level)
	}
	c := f.openUnclosed(pglock.WithMaxConns(8))
	const workers, rounds = 12, 10
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for range rounds {
				l, err := c.Acquire(t.Context(), "hot")
				if err != nil {
					t.Error(err)
					return
				}
				check(t, l.Release(t.Context()))
			}
		})
	}
	wg.Wait()
	check(t, c.Close(t.Context()))
	if n := len(statements.statements); n < 2*workers*rounds {
		t.Errorf("the tracer saw %d statements of %d", n, 2*workers*rounds)
	}
	for _, err := range statements.failed {
		if pgtx.SQLState(err) == "40001" { // serialization_failure
			t.Errorf("a transaction failed to serialize: %v", err)
		}
	}
}

// TestP40_AWaitDoesNotEatTheLease runs the statement of a first grant in a transaction that has
// waited for longer than the TTL, and checks the remaining time of the new lease.
func TestP40_AWaitDoesNotEatTheLease(t *testing.T) {
	t.Parallel()
	const ttl = 400 * time.Millisecond
	f := newFixture(t)
	remaining := func(statement string) time.Duration {
		tx := begin(t, f)
		run(t, tx, "SELECT pg_sleep($1)", (2 * ttl).Seconds())
		rows, err := tx.Query(t.Context(), f.named(statement), []string{fmt.Sprint("n", len(statement))}, []string{"h"},
			[]string{"5a1f0e2c-7a34-4a0e-8f77-0f6b2a3a4d5e"}, []string{"{}"}, []int64{ttl.Microseconds()}, []int64{math.MaxInt64})
		must(t, err)
		us, err := pgx.CollectExactlyOneRow(rows, func(row pgx.CollectableRow) (int64, error) {
			values, err := row.Values()
			if err != nil {
				return 0, err
			}
			return values[4].(int64), nil
		})
		must(t, err)
		return time.Duration(us) * time.Microsecond
	}
	if left := remaining(pglock.AcquireFullSQL); left < ttl/2 {
		t.Errorf("of a lease of %v granted after a wait of %v, %v was left", ttl, 2*ttl, left)
	}
	// The control: now() is the start of the transaction, so the lease is born expired.
	f.weaken("grant_slots", "began := clock_timestamp()", "began := now()")
	if left := remaining(pglock.AcquireFullSQL + " "); left > 0 {
		t.Errorf("control: with now() a lease granted after a wait had %v left", left)
	}
}

// address returns the address that a pool connects to.
func address(c *pgx.ConnConfig) string { return fmt.Sprintf("%s:%d", c.Host, c.Port) }
