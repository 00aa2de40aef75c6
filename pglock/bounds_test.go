package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
)

// TestCloseWhileTheDatabaseIsAway: a call that was cut off may have left a grant, for which the client
// looks in the background. That does not keep Close for a TTL.
func TestCloseWhileTheDatabaseIsAway(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	proxy, far := f.proxied()
	c := far.openUnclosed(pglock.WithTTL(time.Hour))
	release(t, try(t, c, "n"))
	proxy.Cut()
	ctx := bounded(t, 100*time.Millisecond)
	if _, err := c.Acquire(ctx, "n"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("told %v", err)
	}
	began := time.Now()
	_ = c.Close(t.Context())                  // nothing is held
	atMost(t, 20*time.Second, "Close", began) // 5 s, and what the machine takes
	proxy.Heal()
	proxy.Sever()
}

// TestSeveralUpgradesOfOneLease: one call makes the writer, and the others are told that the reader has
// ended so. None of them takes it for lost.
func TestSeveralUpgradesOfOneLease(t *testing.T) {
	t.Parallel()
	const rounds, callers = 40, 3
	f := newFixture(t)
	c := f.open()
	for range rounds {
		reader := held(t, rwlock(c, "rw").read)
		var all sync.WaitGroup
		writers := make(chan *pglock.Lease, callers)
		for range callers {
			all.Go(func() {
				w, err := reader.TryUpgrade(t.Context())
				switch {
				case err == nil:
					writers <- w
				case !errors.Is(err, pglock.ErrReleased) || errors.Is(err, pglock.ErrLost):
					t.Errorf("another call: %v", err)
				}
			})
		}
		all.Wait()
		close(writers)
		if err := reader.Err(); !errors.Is(err, pglock.ErrReleased) || errors.Is(err, pglock.ErrLost) {
			t.Errorf("the reader has ended by %v", err)
		}
		if len(writers) != 1 {
			t.Fatalf("%d writers", len(writers))
		}
		release(t, <-writers)
	}
}

// TestExtendOfManyNames: all of them are trusted for the time that was asked for, also if each answer
// takes a while.
func TestExtendOfManyNames(t *testing.T) {
	t.Parallel()
	const d = time.Hour
	f := newFixture(t)
	proxy, far := f.proxied()
	c := far.open(pglock.WithTTL(time.Minute))
	var names []string
	for i := range 30 {
		names = append(names, fmt.Sprintf("name %02d", i))
	}
	l := held(t, locktest.All(c, names...))
	proxy.Delay(100 * time.Millisecond) // one statement for each name would take 6 s
	must(t, l.Extend(t.Context(), d))
	if trusted := time.Until(l.Deadline()); trusted < d-3*time.Second {
		t.Errorf("trusted for %v, asked for %v", trusted, d)
	}
	proxy.Delay(0)
	release(t, l)
}

// TestAPlannerWithoutNestedLoops: a role or a database may turn them off. Renewals would then read the
// whole table, and lose short leases.
func TestAPlannerWithoutNestedLoops(t *testing.T) {
	t.Parallel()
	const names, changes = 50_000, 10
	f := newFixture(t)
	f.sql(`INSERT INTO pglock.distributed_locks (name, token, version, acquired_at, expires_at)
	       SELECT md5(i::text), pglock.next_fencing_token(), 1, now(), '-infinity' FROM generate_series(1, $1::int) AS i`, names)
	f.sql("ANALYZE pglock.distributed_locks")
	pool := pgtest.PoolOn(t, f.pool.Config().ConnString(), func(config *pgxpool.Config) {
		config.ConnConfig.RuntimeParams["enable_nestloop"] = "off"
	})
	c := fixture{t, pool, f.schema}.openUnclosed(pglock.WithRetention(0), pglock.WithPollOnly(), pglock.WithTTL(time.Minute))
	const stat = " FROM pg_stat_user_tables WHERE relname = 'distributed_locks' AND schemaname = $1"
	read := value[int](f, "SELECT seq_tup_read"+stat, f.schema)
	changed := value[int](f, "SELECT n_tup_upd"+stat, f.schema)
	l := try(t, c, "n")
	for i := range changes {
		must(t, l.Extend(t.Context(), time.Hour+time.Duration(i)*time.Minute))
	}
	release(t, l)
	if err := c.Close(t.Context()); err != nil { // its connections report what they have read
		t.Fatal(err)
	}
	pgtest.Eventually(t, "the statistics", func() bool {
		return value[int](f, "SELECT n_tup_upd"+stat, f.schema) >= changed+changes
	})
	if n := value[int](f, "SELECT seq_tup_read"+stat, f.schema) - read; n >= names {
		t.Errorf("%d rows were read one after the other", n)
	}
}
