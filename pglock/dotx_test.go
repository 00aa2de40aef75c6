package pglock_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/pglock"
)

// TestDoTxAppliesADiscountOnce: many servers read "not used" and apply the discount. With the lock,
// one applies it. The control, in transactions without the lock, applies it more than once.
func TestDoTxAppliesADiscountOnce(t *testing.T) {
	t.Parallel()
	const servers = 20
	f := newApp(t)
	table := schema.Quote(f.schema) + ".discounts"
	applied := func(read func(), do func(apply func(ctx context.Context, tx pgx.Tx) error) error) (n int) {
		t.Helper()
		for _, sql := range []string{"DROP TABLE IF EXISTS " + table, "CREATE TABLE " + table + " (used boolean, times int)", "INSERT INTO " + table + " VALUES (false, 0)"} {
			if _, err := f.pool.Exec(t.Context(), sql); err != nil {
				t.Fatal(err)
			}
		}
		var all sync.WaitGroup
		for range servers {
			all.Go(func() {
				err := do(func(ctx context.Context, tx pgx.Tx) error {
					var used bool
					if err := tx.QueryRow(ctx, "SELECT used FROM "+table).Scan(&used); err != nil || used {
						return err
					}
					read()
					_, err := tx.Exec(ctx, "UPDATE "+table+" SET used = true, times = times + 1")
					return err
				})
				if err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if err := f.pool.QueryRow(t.Context(), "SELECT times FROM "+table).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	if n := applied(func() {}, func(apply func(ctx context.Context, tx pgx.Tx) error) error {
		return f.DoTx(t.Context(), "discount", apply, advisory.WithTimeout(time.Minute))
	}); n != 1 {
		t.Errorf("the discount was applied %d times", n)
	}
	var two sync.WaitGroup // the control continues when two have read
	two.Add(2)
	var readers atomic.Int32
	if n := applied(func() {
		if readers.Add(1) <= 2 {
			two.Done()
		}
		two.Wait()
	}, func(apply func(ctx context.Context, tx pgx.Tx) error) error {
		return pgx.BeginFunc(t.Context(), f.pool, func(tx pgx.Tx) error { return apply(t.Context(), tx) })
	}); n == 1 {
		t.Error("control: without the lock the discount was applied once")
	}
}

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
		if err := advisory.TryLock(ctx, other, f.Key("n")); !errors.Is(err, pglock.ErrNotAcquired) {
			t.Errorf("by Key: %v", err)
		}
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
	if err != nil {
		t.Error(err)
	}
}

func TestDoTxErrors(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, func(c *pgxpool.Config) { c.MaxConns = 2 })
	c, err := pglock.Open(t.Context(), pool, pglock.WithSchema(pgtest.Schema(t, pool)))
	if err != nil {
		t.Fatal(err)
	}
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
	if err != nil {
		t.Error(err)
	}
	if err := c.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if err := c.DoTx(t.Context(), "n", nothing); !errors.Is(err, pglock.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}
