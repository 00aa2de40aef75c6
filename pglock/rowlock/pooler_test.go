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

	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock/rowlock"
	"github.com/pglock/pglock-go/pglock/sqltx"
)

// TestP35_PoolerInTransactionMode: row locks work through the pooler, in every mode that it
// supports, from pgx and from database/sql, with many server connections or only one. Calls that fail
// leave their transaction usable, and no row locked.
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
			begin := []func() (advisory.Tx, error){
				func() (advisory.Tx, error) { return pooled.Begin(t.Context()) },
				func() (advisory.Tx, error) {
					tx, err := db.BeginTx(context.Background(), nil)
					return sqltx.Wrap(tx), err
				},
			}
			f.sql(`UPDATE STOCK SET "qty""left" = 40`)
			var all sync.WaitGroup
			for i := range 6 {
				all.Go(func() {
					for range 5 {
						tx, err := begin[i%2]()
						if err != nil {
							t.Errorf("%s: %v", what, err)
							return
						}
						ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
						err = second(rowlock.Reserve(ctx, tx, f.stock, []line{{"d", "1"}, {"a", "1"}}))
						cancel()
						if err = errors.Join(err, tx.Commit(t.Context())); err != nil {
							t.Errorf("%s: %v", what, err)
						}
					}
				})
			}
			all.Wait()
			f.quantities("a10 b40 c40 d10 e40")
			for _, begin := range begin {
				tx, err := begin()
				ok(t, err)
				f.failThrough(what, tx, size > 1)
				_ = tx.Rollback(t.Context())
			}
			if setting := value[string](f, pooled, "SHOW lock_timeout"); setting != "0" {
				t.Errorf("%s: the session's next user has a lock_timeout of %s", what, setting)
			}
			pooled.Close()
		}
	}
}

// failThrough checks calls that fail in a transaction, and that they leave it usable and no row locked.
func (f fixture) failThrough(what string, tx advisory.Tx, waits bool) {
	t := f.t
	t.Helper()
	f.in(tx, "SAVEPOINT one")
	if rows, err := f.claim(t.Context(), tx, `ORDER BY "the sku" DESC LIMIT $1`, 2); err != nil || rows != "ed" {
		t.Errorf("%s: Claim: %v %v", what, rows, err)
	}
	f.in(tx, "ROLLBACK TO one")
	_, short := rowlock.Reserve(t.Context(), tx, f.stock, []line{{"b", "99"}})
	missing := f.lock(t.Context(), tx, "cx")
	if !errors.Is(short, rowlock.ErrShort) || !errors.Is(missing, rowlock.ErrMissing) {
		t.Errorf("%s: %v, %v", what, short, missing)
	}
	if waits {
		holder := f.begin()
		f.in(holder, `SELECT FROM STOCK WHERE "the sku" = 'e' FOR UPDATE`)
		busy := f.lock(t.Context(), tx, "ae", rowlock.NoWait)
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
		late := f.lock(ctx, tx, "ae")
		cancel()
		if !errors.Is(busy, advisory.ErrNotAcquired) || !errors.Is(late, context.DeadlineExceeded) {
			t.Errorf("%s: %v, %v", what, busy, late)
		}
		_ = holder.Rollback(t.Context())
	}
	f.usable(tx, "0")
}
