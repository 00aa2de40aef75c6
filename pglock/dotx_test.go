package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/pglock"
)

// TestDoTxKey: other programs can compute the key in Go and in SQL. A lease of that name is another
// lock.
func TestDoTxKey(t *testing.T) {
	t.Parallel()
	f := newApp(t)
	err := f.DoTx(t.Context(), "n", func(ctx context.Context, _ pgx.Tx) error {
		other, err := f.pool.Begin(ctx)
		if err != nil {
			return err
		}
		defer func() { _ = other.Rollback(ctx) }()
		fails(t, "by Key", advisory.TryLock(ctx, other, f.Key("n")), pglock.ErrNotAcquired)
		var got bool
		if err := other.QueryRow(ctx, schema.Render("SELECT pg_try_advisory_xact_lock(pglock.advisory_key($1, $2))", f.schema), f.schema, "n").Scan(&got); err != nil || got {
			t.Errorf("in SQL: %v, %v", got, err)
		}
		l, err := f.TryAcquire(ctx, "n")
		if err != nil {
			return err
		}
		return l.Release(ctx)
	})
	check(t, err)
}

func TestDoTxErrors(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, func(c *pgxpool.Config) { c.MaxConns = 2 })
	c, err := pglock.Open(t.Context(), pool, pglock.WithSchema(pgtest.Schema(t, pool)))
	must(t, err)
	nothing := func(context.Context, pgx.Tx) error { return nil }
	own := errors.New("the function's")
	err = c.DoTx(t.Context(), "n", func(ctx context.Context, _ pgx.Tx) error {
		for what, tc := range map[string]struct {
			err error
			is  []error
		}{
			"busy":      {c.DoTx(ctx, "n", nothing, advisory.WithTimeout(20*time.Millisecond)), []error{pglock.ErrNotAcquired, pglock.ErrTimeout}},
			"no name":   {c.DoTx(ctx, "", nothing), []error{pglock.ErrInvalidOption}},
			"long name": {c.DoTx(ctx, strings.Repeat("x", 513), nothing), []error{pglock.ErrInvalidOption}},
			"time-out":  {c.DoTx(ctx, "n", nothing, advisory.WithTimeout(-1)), []error{pglock.ErrInvalidOption}},
			"function":  {c.DoTx(ctx, "n", nil), []error{pglock.ErrInvalidOption}},
			"own":       {c.DoTx(ctx, "other", func(context.Context, pgx.Tx) error { return own }, advisory.WithKeys(c.Key("third")), advisory.WithPoolWait(time.Second)), []error{own}},
		} {
			for _, is := range tc.is {
				if !errors.Is(tc.err, is) {
					t.Errorf("%s: %v", what, tc.err)
				}
			}
		}
		return nil
	}, advisory.WithIsolation(pgx.Serializable), advisory.WithRetry(1))
	check(t, err)
	check(t, c.Close(t.Context()))
	fails(t, "after Close", c.DoTx(t.Context(), "n", nothing), pglock.ErrClosed)
}

// TestDoTxTakesTwoRoundTrips: after the statements are prepared, DoTx takes one round trip before
// the function and one after it.
func TestDoTxTakesTwoRoundTrips(t *testing.T) {
	t.Parallel()
	f := newApp(t)
	c := f.openOn(pgtest.Pool(t, pgtest.CountTurns))
	for what, opts := range map[string][]advisory.DoOption{
		"plain": nil, "with a time-out": {advisory.WithTimeout(time.Minute)}, "serializable": {advisory.WithIsolation(pgx.Serializable)},
	} {
		var used *pgx.Conn
		for range 2 { // the first one prepares
			var began, then int64
			if used != nil {
				began = pgtest.Turns(used)
			}
			if err := c.DoTx(t.Context(), "n", func(_ context.Context, tx pgx.Tx) error {
				used, then = tx.Conn(), pgtest.Turns(tx.Conn())
				return nil
			}, opts...); err != nil {
				t.Fatal(err)
			}
			if after := pgtest.Turns(used) - then; began > 0 && (then-began != 1 || after != 1) {
				t.Errorf("%s: %d round trips before the function, %d after it", what, then-began, after)
			}
		}
	}
}

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

func newApp(t *testing.T) app {
	t.Helper()
	f := newFixture(t)
	return app{f, f.openOn(f.pool)}
}

// openOn returns a client that uses the role of a pool.
func (f fixture) openOn(pool *pgxpool.Pool) *pglock.Client {
	f.t.Helper()
	return locktest.ClientOn(f.t, pool, pglock.WithSchema(f.schema))
}

// free fails the test if the lock is held.
func (f app) free(name string) {
	f.t.Helper()
	if k, err := f.Get(f.t.Context(), name); err != nil || k.Held() {
		f.t.Errorf("the lock should be free: %+v, %v", k, err)
	}
}

// app is a fixture with a client that has the rights of the owner.
type app struct {
	fixture
	*pglock.Client
}

// steal grants every lock to a thief.
func (f fixture) steal() {
	f.t.Helper()
	f.sql("UPDATE pglock.distributed_locks SET token = pglock.next_fencing_token(), holder = 'thief'")
}
