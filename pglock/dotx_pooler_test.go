package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/pglock"
)

// TestP35_PoolerInTransactionMode: leases and DoTx work through the pooler, and exclude clients
// that connect past it.
func TestP35_PoolerInTransactionMode(t *testing.T) {
	t.Parallel()
	f := newApp(t)
	modes, settings := pgtest.PoolerModes()
	through := pgtest.Pooler(t, pgtest.URL(t), "transaction", append(settings, "default_pool_size = 6")...)
	table := schema.Quote(f.schema) + ".counter"
	if _, err := f.pool.Exec(t.Context(), "CREATE TABLE "+table+" AS SELECT 0 AS n"); err != nil {
		t.Fatal(err)
	}
	const workers, rounds = 6, 4
	for i, mode := range modes {
		pooled := pgtest.PoolOn(t, through, func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = mode })
		c := f.openOn(pooled)
		fromDB, _ := f.openOnDB(stdlib.OpenDB(*pooled.Config().ConnConfig))
		name := fmt.Sprint("pooled ", mode)
		var all sync.WaitGroup
		for _, client := range []*pglock.Client{c, fromDB, f.Client} {
			for range workers / 3 {
				all.Go(func() {
					for range rounds {
						err := client.DoTx(t.Context(), name, func(ctx context.Context, tx pgx.Tx) error {
							var n int
							if err := tx.QueryRow(ctx, "SELECT n FROM "+table).Scan(&n); err != nil {
								return err
							}
							_, err := tx.Exec(ctx, "UPDATE "+table+" SET n = $1", n+1)
							return err
						}, advisory.WithTimeout(time.Minute))
						if err != nil {
							t.Errorf("%v: %v", mode, err)
						}
					}
				})
			}
		}
		all.Wait()
		var n int
		if err := f.pool.QueryRow(t.Context(), "SELECT n FROM "+table).Scan(&n); err != nil || n != (i+1)*workers*rounds {
			t.Errorf("%v: n is %d, %v", mode, n, err)
		}

		l, err := fromDB.TryAcquire(t.Context(), name, pglock.WithTTL(time.Minute))
		if err != nil {
			t.Fatalf("%v: %v", mode, err)
		}
		if _, err := f.TryAcquire(t.Context(), name); !errors.Is(err, pglock.ErrNotAcquired) {
			t.Errorf("%v: beside the holder: %v", mode, err)
		}
		err = pgx.BeginFunc(t.Context(), f.pool, func(tx pgx.Tx) error { return l.Guard(t.Context(), tx) })
		if err := errors.Join(err, l.Extend(t.Context(), 30*time.Second), l.Release(t.Context())); err != nil {
			t.Errorf("%v: %v", mode, err)
		}
		f.free(name)
	}
}
