package rowlock_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock/rowlock"
	"github.com/pglock/pglock-go/pglock/sqltx"
)

// TestP35_PoolerInTransactionMode: row locks work through the pooler, in every mode that it
// supports, from pgx and from database/sql, with many server connections or only one.
func TestP35_PoolerInTransactionMode(t *testing.T) {
	t.Parallel()
	modes, settings := pgtest.PoolerModes()
	for _, size := range []int{1, 20} {
		through := pgtest.Pooler(t, pgtest.URL(t), "transaction", append(settings, fmt.Sprintf("default_pool_size = %d", size))...)
		for _, mode := range modes {
			f := newFixture(t)
			pooled := pgtest.PoolOn(t, through, func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = mode })
			db := stdlib.OpenDB(*pooled.Config().ConnConfig)
			t.Cleanup(func() { _ = db.Close() })
			what := fmt.Sprintf("%d sessions, %v", size, mode)
			begin := map[string]func() (rowlock.Tx, error){
				"pgx": func() (rowlock.Tx, error) { return pooled.Begin(t.Context()) },
				"database/sql": func() (rowlock.Tx, error) {
					tx, err := db.BeginTx(context.Background(), nil)
					return sqltx.Wrap(tx), err
				},
			}
			f.reserveThrough(t, what, begin)
			f.failThrough(t, what, begin, size > 1)
			if setting := value[string](f, pooled, "SHOW lock_timeout"); setting != "0" {
				t.Errorf("%s: the session's next user has a lock_timeout of %s", what, setting)
			}
			pooled.Close()
		}
	}
}

// reserveThrough makes six workers reserve five times each, a third of them with a deadline.
func (f fixture) reserveThrough(t *testing.T, what string, begin map[string]func() (rowlock.Tx, error)) {
	t.Helper()
	f.sql(`UPDATE STOCK SET "qty""left" = 40`)
	var all sync.WaitGroup
	for i := range 6 {
		all.Go(func() {
			for range 5 {
				tx, err := begin[[]string{"pgx", "database/sql"}[i%2]]()
				if err != nil {
					t.Errorf("%s: %v", what, err)
					return
				}
				ctx, cancel := t.Context(), func() {}
				if i%3 == 0 {
					ctx, cancel = context.WithTimeout(ctx, time.Minute)
				}
				_, err = rowlock.Reserve(ctx, tx, f.stock, []line{{"d", "1"}, {"a", "1"}})
				cancel()
				if err = errors.Join(err, tx.Commit(t.Context())); err != nil {
					t.Errorf("%s: %v", what, err)
				}
			}
		})
	}
	all.Wait()
	f.quantities("a10 b40 c40 d10 e40")
}

// failThrough checks that calls that fail leave their transaction usable, and no row locked.
func (f fixture) failThrough(t *testing.T, what string, begin map[string]func() (rowlock.Tx, error), waits bool) {
	t.Helper()
	for driver, begin := range begin {
		tx, err := begin()
		if err != nil {
			t.Fatal(err)
		}
		rows, claimed := f.claim(t.Context(), tx, `ORDER BY "the sku" DESC LIMIT $1`, 2)
		if claimed != nil || rows != "ed" {
			t.Errorf("%s, %s: Claim: %v %v", what, driver, rows, claimed)
		}
		_ = tx.Rollback(t.Context())
		if tx, err = begin(); err != nil {
			t.Fatal(err)
		}
		_, short := rowlock.Reserve(t.Context(), tx, f.stock, []line{{"b", "99"}})
		missing := f.lock(t.Context(), tx, "cx")
		if !errors.Is(short, rowlock.ErrShort) || !errors.Is(missing, rowlock.ErrMissing) {
			t.Errorf("%s, %s: %v, %v", what, driver, short, missing)
		}
		if waits {
			holder := f.begin()
			f.in(holder, `SELECT FROM STOCK WHERE "the sku" = 'e' FOR UPDATE`)
			busy := f.lock(t.Context(), tx, "ae", rowlock.NoWait)
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
			late := f.lock(ctx, tx, "ae")
			cancel()
			if !errors.Is(busy, rowlock.ErrNotAcquired) || !errors.Is(late, context.DeadlineExceeded) {
				t.Errorf("%s, %s: %v, %v", what, driver, busy, late)
			}
			_ = holder.Rollback(t.Context())
		}
		f.usable(tx, "0")
		_ = tx.Rollback(t.Context())
	}
}
