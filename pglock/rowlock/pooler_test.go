package rowlock_test

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

// reserveThrough makes six workers reserve five times each, a third of them with a timeout.
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
				var opts []rowlock.Option
				if i%3 == 0 {
					opts = append(opts, rowlock.WithTimeout(time.Minute))
				}
				_, err = rowlock.Reserve(t.Context(), tx, f.stock, []line{{"d", 1}, {"a", 1}}, opts...)
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
		_, short := rowlock.Reserve(t.Context(), tx, f.stock, []line{{"b", 99}})
		_, missing := rowlock.ForUpdate[item](t.Context(), tx, f.stock.Table, []string{"c", "x"})
		_, unknown := rowlock.ForUpdate[item](t.Context(), tx, rowlock.Table{Name: pgx.Identifier{"no such"}, Key: "the sku"}, []string{"c"})
		if !errors.Is(short, rowlock.ErrShort) || !errors.Is(missing, rowlock.ErrMissing) || !errors.Is(unknown, rowlock.ErrTable) {
			t.Errorf("%s, %s: %v, %v, %v", what, driver, short, missing, unknown)
		}
		if waits {
			holder := f.begin()
			f.in(holder, `SELECT FROM STOCK WHERE "the sku" = 'e' FOR UPDATE`)
			_, busy := rowlock.ForUpdate[item](t.Context(), tx, f.stock.Table, []string{"a", "e"}, rowlock.NoWait())
			_, late := rowlock.ForUpdate[item](t.Context(), tx, f.stock.Table, []string{"a", "e"}, rowlock.WithTimeout(30*time.Millisecond))
			ctx, cancel := context.WithCancelCause(t.Context())
			time.AfterFunc(50*time.Millisecond, func() { cancel(errStop) })
			_, stopped := rowlock.ForUpdate[item](ctx, tx, f.stock.Table, []string{"a", "e"})
			if !errors.Is(busy, rowlock.ErrNotAcquired) || !errors.Is(late, rowlock.ErrTimeout) || !errors.Is(stopped, errStop) {
				t.Errorf("%s, %s: %v, %v, %v", what, driver, busy, late, stopped)
			}
			_ = holder.Rollback(t.Context())
		}
		f.usable(tx, "0")
		_ = tx.Rollback(t.Context())
	}
	tx, err := begin["pgx"]()
	if err != nil {
		t.Fatal(err)
	}
	rows, err := rowlock.Claim[item](t.Context(), tx, f.stock.Table, 2, rowlock.OrderByDescending("the sku"))
	if err = errors.Join(err, tx.Rollback(t.Context())); err != nil || skus(rows) != "ed" {
		t.Errorf("%s: Claim: %v %v", what, rows, err)
	}
}
