package limits

import (
	"context"
	"os"
	"runtime"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/migrations"
	"github.com/pglock/pglock-go/pglock"
)

const (
	// churnVariable sets the length of the churn.
	churnVariable = "PGLOCK_CHURN"
	defaultChurn  = 5 * time.Minute
	churnRate     = 300 // operations per second in the long form, which leaves the machine to others

	workers = 16

	// A sample follows each round.
	rounds, shortRounds = 50, 15

	// The least of a round in the short form.
	shortRound = 100 * time.Millisecond
	roundWork  = 60 // operations
)

// TestChurn works with locks of every kind. Nothing may grow, and nothing may be left between two
// rounds. The control leaks what can leak, and each leak must be found.
func TestChurn(t *testing.T) { // not parallel: it counts the goroutines of the process
	t.Run("flat", func(t *testing.T) {
		samples := newChurn(t).run(churnTime(t))
		n := samples[len(samples)-1].operations
		if grown := leaks(samples); len(grown) > 0 {
			t.Errorf("in %d operations these grow: %v%s\n%s", n, grown, table(samples), stacks())
			return
		}
		t.Logf("nothing grows in %d operations%s", n, table(samples))
	})
	t.Run("control", func(t *testing.T) {
		c := newChurn(t)
		c.leaky = true
		samples := c.run(0)
		t.Logf("%d operations%s", samples[len(samples)-1].operations, table(samples))
		grown := leaks(samples)
		for f := range figures {
			if !slices.Contains(grown, f) {
				t.Errorf("%s leak and nothing was found", f)
			}
		}
	})
}

// churnTime returns the length of the churn, and 0 for the short form.
func churnTime(t *testing.T) time.Duration {
	t.Helper()
	if !long() {
		return 0
	}
	text := os.Getenv(churnVariable)
	if text == "" {
		return defaultChurn
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// churn is a database and the clients that work with its locks.
type churn struct {
	t       *testing.T
	pool    *pgxpool.Pool
	admin   *pgx.Conn // takes the samples
	clients []*pglock.Client
	leaky   bool

	work       sync.RWMutex // an operation has it shared, a sample exclusive
	operations atomic.Int64
	pace       <-chan time.Time // nil: no limit

	leaked leaked
}

func newChurn(t *testing.T) *churn {
	t.Helper()
	url := pgtest.Database(t)
	c := &churn{t: t, pool: pgtest.PoolOn(t, url)}
	if err := migrations.Up(t.Context(), c.pool); err != nil {
		t.Fatal(err)
	}
	var err error
	if c.admin, err = pgx.Connect(t.Context(), url); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.admin.Close(context.Background()) })
	for range 3 {
		c.clients = append(c.clients, locktest.ClientOn(t, c.pool, pglock.WithLogger(nil)))
	}
	return c
}

// run works for that long, and returns samples from times without work. Unless the churn is leaky,
// it waits before each sample until nothing is held, and at the end until nobody waits.
func (c *churn) run(length time.Duration) (samples []sample) {
	c.t.Helper()
	n, round := shortRounds, shortRound
	if length > 0 {
		n, round = rounds, length/rounds
		ticker := time.NewTicker(time.Second / churnRate)
		defer ticker.Stop()
		c.pace = ticker.C
	}
	ctx, cancel := context.WithCancel(c.t.Context())
	var all sync.WaitGroup
	defer func() { cancel(); all.Wait(); c.leaked.end() }()
	for i := range workers {
		all.Go(func() { c.worker(ctx, i) })
	}
	for range n {
		enough := c.operations.Load() + roundWork
		<-time.After(round)
		pgtest.Eventually(c.t, "a round ends", func() bool { return c.operations.Load() >= enough })
		c.work.Lock()
		if !c.leaky {
			pgtest.Eventually(c.t, "nothing is held", func() bool {
				s := c.sample()
				return s.values[held]+s.values[permits] == 0
			})
		}
		if _, err := c.admin.Exec(ctx, "VACUUM pglock.distributed_locks, pglock.lock_waiters, pglock.lock_permits"); err != nil {
			c.t.Fatal(err)
		}
		samples = append(samples, c.sample())
		c.work.Unlock()
	}
	cancel()
	all.Wait()
	if !c.leaky {
		pgtest.Eventually(c.t, "nobody waits", func() bool { return c.sample().values[tickets] == 0 })
	}
	return samples
}

// sample measures at a time without work.
func (c *churn) sample() (s sample) {
	c.t.Helper()
	v := &s.values
	err := c.admin.QueryRow(c.t.Context(), `SELECT
		(SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()),
		(SELECT count(*) FROM pglock.distributed_locks),
		pg_total_relation_size('pglock.distributed_locks') + pg_total_relation_size('pglock.lock_waiters') + pg_total_relation_size('pglock.lock_permits'),
		(SELECT count(*) FROM pglock.distributed_locks WHERE expires_at > clock_timestamp())
			+ (SELECT count(*) FROM pglock.lock_permits WHERE expires_at > clock_timestamp()),
		(SELECT count(*) FROM pglock.lock_permits),
		(SELECT count(*) FROM pglock.lock_waiters),
		(SELECT string_agg(r.relname || ' ' || pg_relation_size(r.oid), ', ' ORDER BY r.relname) FROM pg_class AS r
		 WHERE r.relnamespace = 'pglock'::regnamespace AND r.relname ~ '^(distributed_locks|lock_waiters|lock_permits)' AND r.relkind IN ('r', 'i'))`).
		Scan(&v[connections], &v[names], &v[size], &v[held], &v[permits], &v[tickets], &s.relations)
	if err != nil {
		c.t.Fatal(err)
	}
	runtime.GC()
	runtime.GC() // also frees what the first one has moved out of the pools of package sync
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	v[heap], v[goroutines] = int64(m.HeapAlloc), int64(runtime.NumGoroutine())
	s.operations = c.operations.Load()
	return s
}

// stacks returns the goroutines by their stacks.
func stacks() string {
	var b strings.Builder
	_ = pprof.Lookup("goroutine").WriteTo(&b, 1)
	return b.String()
}
