package conformance

import (
	"context"
	"os"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
)

// testExclusion has 24 workers in four processes, a hundred in the long form, read a number and write it back plus one, in
// two statements. The control does the same without the lock and must lose updates: otherwise the
// test shows nothing. Its first readers wait for each other, so the loss does not depend on luck.
func testExclusion(t *testing.T, open func() Locker) {
	const processes, rounds = 4, 4
	workers := 6 // in each process
	if os.Getenv("PGLOCK_CHAOS") != "" {
		workers = 25
	}
	want := processes * workers * rounds
	c := newCounter(t)
	var lockers []Locker
	for range processes {
		lockers = append(lockers, open())
	}
	var inside, overlaps atomic.Int32
	c.crowd(processes*workers, rounds, func(i int) error {
		ctx, cancel := context.WithTimeout(t.Context(), pgtest.Patience)
		defer cancel()
		unlock, err := lockers[i%processes].Lock(ctx, "counter")
		if err != nil {
			return err
		}
		if inside.Add(1) > 1 {
			overlaps.Add(1)
		}
		err = c.increment(t.Context(), func() {})
		inside.Add(-1)
		if e := unlock(t.Context()); err == nil {
			err = e
		}
		return err
	})
	if n := c.value(); n != want || overlaps.Load() > 0 {
		t.Errorf("%d of %d updates are there, holders overlapped %d times", n, want, overlaps.Load())
	}
	control := newCounter(t)
	var readers atomic.Int32
	var two sync.WaitGroup
	two.Add(2)
	control.crowd(processes*workers, rounds, func(int) error {
		return control.increment(t.Context(), func() {
			if readers.Add(1) <= 2 {
				two.Done()
				two.Wait()
			}
		})
	})
	if n := control.value(); n == want {
		t.Errorf("control: without the lock no update was lost")
	}
}

// counter is a number in a table of its own.
type counter struct {
	t     *testing.T
	pool  *pgxpool.Pool
	table string
}

func newCounter(t *testing.T) counter {
	t.Helper()
	pool, schema := pgtest.Pool(t), pgtest.SchemaName(t)
	c := counter{t, pool, pgx.Identifier{schema, "counter"}.Sanitize()}
	locktest.Exec(t, pool, "CREATE SCHEMA "+pgx.Identifier{schema}.Sanitize())
	locktest.Exec(t, pool, "CREATE TABLE "+c.table+" AS SELECT 0 AS n")
	return c
}

// crowd runs do in several workers, several times each.
func (c counter) crowd(workers, rounds int, do func(worker int) error) {
	c.t.Helper()
	var all sync.WaitGroup
	for i := range workers {
		all.Go(func() {
			for range rounds {
				if err := do(i); err != nil {
					c.t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
}

// increment reads the number, calls meanwhile, and writes the number plus one.
func (c counter) increment(ctx context.Context, meanwhile func()) error {
	var n int
	if err := c.pool.QueryRow(ctx, "SELECT n FROM "+c.table).Scan(&n); err != nil {
		return err
	}
	meanwhile()
	_, err := c.pool.Exec(ctx, "UPDATE "+c.table+" SET n = $1", n+1)
	return err
}

func (c counter) value() int {
	c.t.Helper()
	return locktest.Scan[int](c.t, c.pool, "SELECT n FROM "+c.table)
}
