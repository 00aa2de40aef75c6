package pglock_test

import (
	"context"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/pgtest"
)

// TestI1_P42_ExclusionAcrossClients has workers of several clients read a counter and write it back
// incremented, in two statements.
func TestI1_P42_ExclusionAcrossClients(t *testing.T) {
	t.Parallel()
	const clients, workers, rounds = 4, 5, 8
	f := newFixture(t)
	f.sql("CREATE TABLE pglock.counter (n int)")
	f.sql("INSERT INTO pglock.counter VALUES (0)")
	pool := pgtest.Pool(t, func(c *pgxpool.Config) { c.MaxConns = 20 })
	// increment adds one to the value that it has read. It calls meanwhile in between.
	increment := func(ctx context.Context, meanwhile func()) {
		var n int
		if err := pool.QueryRow(ctx, f.named("SELECT n FROM pglock.counter")).Scan(&n); err != nil {
			t.Error(err)
		}
		meanwhile()
		if _, err := pool.Exec(ctx, f.named("UPDATE pglock.counter SET n = $1"), n+1); err != nil {
			t.Error(err)
		}
	}
	var wg sync.WaitGroup
	for range clients {
		c := f.open()
		for range workers {
			wg.Go(func() {
				for range rounds {
					l, err := c.Acquire(t.Context(), "counter")
					if err != nil {
						t.Error(err)
						return
					}
					increment(l.Context(), func() {})
					if err := l.Release(t.Context()); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	wg.Wait()
	const want = clients * workers * rounds
	if n := value[int](f, "SELECT n FROM pglock.counter"); n != want {
		t.Errorf("with the lock %d of %d updates are there", n, want)
	}
	if token := value[int64](f, "SELECT token FROM pglock.distributed_locks WHERE name = 'counter'"); token < want {
		t.Errorf("%d grants drew tokens up to %d only", want, token)
	}

	// P42: the control. Two clients do the same without the lock, and both read before the first
	// one writes. They must lose an update: otherwise the test above shows nothing.
	var read sync.WaitGroup
	read.Add(2)
	for range 2 {
		wg.Go(func() { increment(t.Context(), func() { read.Done(); read.Wait() }) })
	}
	wg.Wait()
	if n := value[int](f, "SELECT n FROM pglock.counter"); n != want+1 {
		t.Errorf("control: without the lock two updates added %d", n-want)
	}
}
