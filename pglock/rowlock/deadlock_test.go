package rowlock_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock/pglock-go/pglock/rowlock"
)

// TestP37_KeysInAnyOrderDoNotDeadlock: each of seven callers locks all rows twenty times, in an
// order of its own. The control locks two rows in the order given, and deadlocks.
func TestP37_KeysInAnyOrderDoNotDeadlock(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, f fixture, begin func() rowlock.Tx) {
		t.Helper()
		locked := f.crowd(t, begin, func(ctx context.Context, tx rowlock.Tx, keys []string) error {
			return second(rowlock.ForUpdate[item](ctx, tx, f.stock.Table, keys))
		})
		if locked.deadlocks != 0 || locked.failed != nil {
			t.Errorf("ForUpdate: %d deadlocks, %v", locked.deadlocks, locked.failed)
		}
		reserved := f.crowd(t, begin, func(ctx context.Context, tx rowlock.Tx, keys []string) error {
			lines := make([]line, len(keys))
			for i, k := range keys {
				lines[i] = line{k, 1}
			}
			return second(rowlock.Reserve(ctx, tx, f.stock, lines))
		})
		if reserved.deadlocks != 0 || reserved.failed != nil {
			t.Errorf("Reserve: %d deadlocks, %v", reserved.deadlocks, reserved.failed)
		}
		var all, first sync.WaitGroup
		first.Add(2)
		errs := make([]error, 2)
		for i, keys := range [][]string{{"a", "b"}, {"b", "a"}} {
			tx := begin()
			all.Go(func() {
				_, one := tx.Exec(t.Context(), f.named(`SELECT FROM STOCK WHERE "the sku" = $1 FOR UPDATE`), keys[0])
				first.Done()
				first.Wait() // each has locked its first row
				_, other := tx.Exec(t.Context(), f.named(`SELECT FROM STOCK WHERE "the sku" = $1 FOR UPDATE`), keys[1])
				errs[i] = errors.Join(one, other, tx.Rollback(t.Context()))
			})
		}
		all.Wait()
		if !deadlocked(errs[0]) && !deadlocked(errs[1]) {
			t.Errorf("the control has not deadlocked, this test shows nothing: %v", errs)
		}
	})
}

func deadlocked(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == "40P01"
}

type tally struct {
	mu        sync.Mutex
	deadlocks int
	failed    error
}

// crowd locks all rows from several callers at the same time, until one meets a deadlock.
func (f fixture) crowd(t *testing.T, begin func() rowlock.Tx, lock func(context.Context, rowlock.Tx, []string) error) *tally {
	t.Helper()
	var all tally
	for range 20 {
		var group sync.WaitGroup
		for range 7 { // of the pool's eight connections
			tx, keys := begin(), []string{"a", "b", "c", "d", "e"}
			rand.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
			group.Go(func() {
				err := lock(t.Context(), tx, keys)
				_ = tx.Rollback(t.Context())
				all.mu.Lock()
				defer all.mu.Unlock()
				switch {
				case deadlocked(err):
					all.deadlocks++
				case err != nil:
					all.failed = err
				}
			})
		}
		group.Wait()
		if all.deadlocks > 0 {
			break
		}
	}
	return &all
}

// TestDeadlockIsReported, with the locks that the transaction held before, which it keeps.
func TestDeadlockIsReported(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, f fixture, begin func() rowlock.Tx) {
		t.Helper()
		one, other := begin(), begin()
		f.in(one, "SET LOCAL deadlock_timeout = '10ms'")
		// So that the transaction one is the victim.
		f.in(other, "SET LOCAL deadlock_timeout = '1h'")
		lock := func(tx rowlock.Tx, key string) error {
			return second(rowlock.ForUpdate[item](t.Context(), tx, f.stock.Table, []string{key}))
		}
		if err := errors.Join(lock(one, "a"), lock(other, "b")); err != nil {
			t.Fatal(err)
		}
		done := later(func() error { return lock(other, "a") })
		f.waiting(1)
		var pg *pgconn.PgError
		if err := lock(one, "b"); !errors.Is(err, rowlock.ErrDeadlock) || !errors.Is(err, rowlock.ErrNotAcquired) || !errors.As(err, &pg) {
			t.Errorf("%v", err)
		}
		f.in(one, "SELECT 1")
		if err := one.Rollback(t.Context()); err != nil {
			t.Error(err)
		}
		if err := <-done; err != nil {
			t.Errorf("the other: %v", err)
		}
	})
}

// TestChangedKeyDoesNotBreakTheOrder: the trap of ORDER BY with FOR UPDATE. A row whose key changes
// during the wait is returned with its new key, in that key's order.
func TestChangedKeyDoesNotBreakTheOrder(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	holder, tx := f.begin(), f.begin()
	f.in(holder, `UPDATE STOCK SET "the sku" = 'm' WHERE "the sku" = 'a'`)
	var rows rowlock.ByKey[string, item]
	done := later(func() (err error) {
		rows, err = rowlock.ForUpdate[item](t.Context(), tx, f.stock.Table, []string{"a", "b", "m"}, rowlock.AllowMissing())
		return err
	})
	f.waiting(1)
	if err := holder.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil || skus(values(rows)) != "bm" {
		t.Errorf("%v %v", rows, err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	plain, err := f.plainOrder(t)
	if err != nil || plain != "nbc" {
		t.Errorf("the control, without the second sort: %q %v", plain, err)
	}
}

// plainOrder is the plain statement, which returns the rows in the wrong order.
func (f fixture) plainOrder(t *testing.T) (string, error) {
	t.Helper()
	f.sql(`INSERT INTO STOCK VALUES ('a', 1)`)
	holder, tx := f.begin(), f.begin()
	f.in(holder, `UPDATE STOCK SET "the sku" = 'n' WHERE "the sku" = 'a'`)
	var rows []item
	done := later(func() error {
		found, err := tx.Query(t.Context(), f.named(`SELECT * FROM (SELECT "the sku", "qty""left" FROM STOCK WHERE "the sku" = ANY ('{a,b,c,n}') ORDER BY "the sku" FOR UPDATE) x`))
		if err == nil {
			rows, err = pgx.CollectRows(found, pgx.RowToStructByName[item])
		}
		return err
	})
	f.waiting(1)
	if err := holder.Commit(t.Context()); err != nil {
		return "", err
	}
	err := <-done
	return skus(rows), err
}

// TestP37_RowsAreLockedInTheOrderOfTheKey, not in that of the table or of the arguments: while the
// call waits for the third row, the two before it are locked and those after it are free.
func TestP37_RowsAreLockedInTheOrderOfTheKey(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, f fixture, begin func() rowlock.Tx) {
		t.Helper()
		f.sql("TRUNCATE STOCK")
		f.sql(`INSERT INTO STOCK SELECT v, 10, 1 FROM unnest('{e,d,c,b,a}'::text[]) v`)
		keys, lines := []string{"d", "a", "c", "e", "b"}, []line{{"d", 1}, {"a", 1}, {"c", 1}, {"e", 1}, {"b", 1}}
		for name, call := range map[string]func(tx rowlock.Tx) error{
			"ForUpdate": func(tx rowlock.Tx) error {
				return second(rowlock.ForUpdate[item](t.Context(), tx, f.stock.Table, keys))
			},
			"ForShare": func(tx rowlock.Tx) error { return second(rowlock.ForShare[item](t.Context(), tx, f.stock.Table, keys)) },
			"Reserve":  func(tx rowlock.Tx) error { return second(rowlock.Reserve(t.Context(), tx, f.stock, lines)) },
			"Restock":  func(tx rowlock.Tx) error { return second(rowlock.Restock(t.Context(), tx, f.stock, lines)) },
		} {
			holder, tx := f.begin(), begin()
			f.in(holder, `SELECT FROM STOCK WHERE "the sku" = 'c' FOR UPDATE`)
			done := later(func() error { return call(tx) })
			f.waiting(1)
			if free := f.free(); free != "de" {
				t.Errorf("%s: %q are free, de should be", name, free)
			}
			if err := errors.Join(holder.Rollback(t.Context()), <-done, tx.Rollback(t.Context())); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}
