package advisory_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/internal/pgtest"
)

// ledger is a table with one number, in a schema of its own.
type ledger struct {
	t     *testing.T
	pool  *pgxpool.Pool
	table string
}

func newLedger(t *testing.T, opts ...func(*pgxpool.Config)) ledger {
	t.Helper()
	pool := pgtest.Pool(t, opts...)
	l := ledger{t, pool, pgx.Identifier{pgtest.Schema(t, pool), "ledger"}.Sanitize()}
	l.exec("CREATE TABLE " + l.table + " (id int PRIMARY KEY, n int NOT NULL)")
	l.exec("INSERT INTO " + l.table + " VALUES (1, 0)")
	return l
}

func (l ledger) exec(sql string) {
	l.t.Helper()
	if _, err := l.pool.Exec(l.t.Context(), sql); err != nil {
		l.t.Fatalf("%s: %v", sql, err)
	}
}

func (l ledger) n() int {
	l.t.Helper()
	return count(l.t, l.pool, "SELECT n FROM "+l.table)
}

// increment reads the number and writes it back plus one, in two statements.
func (l ledger) increment(ctx context.Context, tx pgx.Tx) error {
	var n int
	if err := tx.QueryRow(ctx, "SELECT n FROM "+l.table).Scan(&n); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, "UPDATE "+l.table+" SET n = $1", n+1)
	return err
}

// TestDoRollsBackAPanic and a Goexit, and lets them continue.
func TestDoRollsBackAPanic(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	key := advisory.NewKey("do", t.Name())
	for what, leave := range map[string]func(){"panic": func() { panic("boom") }, "Goexit": runtime.Goexit} {
		exited := make(chan any)
		go func() {
			defer func() { exited <- recover() }()
			_ = advisory.Do(t.Context(), l.pool, key, func(ctx context.Context, tx pgx.Tx) error {
				if err := l.increment(ctx, tx); err != nil {
					t.Error(err)
				}
				leave()
				return nil
			})
		}()
		if p := <-exited; (p == "boom") != (what == "panic") {
			t.Errorf("%s: recovered %v", what, p)
		}
		if l.n() != 0 || locksOn(t, l.pool, key) != 0 {
			t.Errorf("after a %s n is %d, %d locks", what, l.n(), locksOn(t, l.pool, key))
		}
	}
	whole(t, l.pool)
}

// TestDoSeesWhatTheLastHolderWrote: at the levels where a transaction reads one snapshot, the
// snapshot of Do is no older than the lock. Lock in the caller's transaction can't guarantee that,
// as the control shows.
func TestDoSeesWhatTheLastHolderWrote(t *testing.T) {
	t.Parallel()
	for _, level := range []pgx.TxIsoLevel{"", pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable} {
		for _, deflt := range []string{"read committed", "repeatable read"} {
			t.Run(fmt.Sprintf("%s default %s", level, deflt), func(t *testing.T) {
				t.Parallel()
				l := newLedger(t, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["default_transaction_isolation"] = deflt })
				key := advisory.NewKey("snapshot", t.Name())
				opts := []advisory.DoOption{advisory.WithKeys(advisory.NewKey("snapshot too", t.Name()))}
				if level != "" {
					opts = append(opts, advisory.WithIsolation(level))
				}
				before := holder(t, l.pool, key)
				seen := make(chan error, 1)
				go func() {
					seen <- advisory.Do(t.Context(), l.pool, key, func(ctx context.Context, tx pgx.Tx) error {
						if got := setting(t, tx, "transaction_isolation"); level != "" && got != string(level) || level == "" && got != deflt {
							return fmt.Errorf("isolation level %s", got)
						}
						if n := held(t, tx); n != 2 {
							return fmt.Errorf("%d locks", n)
						}
						return l.increment(ctx, tx)
					}, opts...)
				}()
				pgtest.Eventually(t, "Do waits", func() bool { return waitsFor(t, l.pool, key) == 1 })
				if _, err := before.Exec(t.Context(), "UPDATE "+l.table+" SET n = 41"); err != nil {
					t.Fatal(err)
				}
				ok(t, before.Commit(t.Context()))
				if err := <-seen; err != nil || l.n() != 42 {
					t.Errorf("%v, n is %d", err, l.n())
				}
				if n := locksOn(t, l.pool, key); n != 0 {
					t.Errorf("%d locks are left", n)
				}
			})
		}
	}
}

// TestLockOnAnOldSnapshot is the control of the test above: what Lock documents for REPEATABLE
// READ.
func TestLockOnAnOldSnapshot(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	key := advisory.NewKey("snapshot", t.Name())
	for level, want := range map[pgx.TxIsoLevel]int{pgx.ReadCommitted: 1, pgx.RepeatableRead: 0} {
		l.exec("UPDATE " + l.table + " SET n = 0")
		before, tx := holder(t, l.pool, key), begin(t, l.pool, pgx.TxOptions{IsoLevel: level})
		locked := make(chan error, 1)
		go func() { locked <- advisory.Lock(t.Context(), tx, key) }()
		pgtest.Eventually(t, "Lock waits", func() bool { return waitsFor(t, l.pool, key) == 1 })
		ok(t, l.increment(t.Context(), before))
		ok(t, before.Commit(t.Context()))
		ok(t, <-locked)
		if n := count(t, tx, "SELECT n FROM "+l.table); n != want {
			t.Errorf("at %s it reads %d, want %d", level, n, want)
		}
		_ = tx.Rollback(t.Context())
	}
}

// TestDoRetries: a refused transaction is repeated as often as WithRetry allows, and not without
// it.
func TestDoRetries(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	key := advisory.NewKey("retry", t.Name())
	for _, state := range []string{"40001", "40P01", "23505"} {
		for _, retries := range []int{0, 1, 3} {
			l.exec("UPDATE " + l.table + " SET n = 0")
			runs := 0
			err := advisory.Do(t.Context(), l.pool, key, func(ctx context.Context, tx pgx.Tx) error {
				if err := l.increment(ctx, tx); err != nil {
					return err
				}
				if runs++; runs <= 2 {
					return fmt.Errorf("wrapped: %w", &pgconn.PgError{Code: state})
				}
				return nil
			}, advisory.WithRetry(retries))
			wantRuns := min(retries+1, 3)
			if state == "23505" {
				wantRuns = 1
			}
			if runs != wantRuns || (err == nil) != (runs == 3) {
				t.Errorf("%s with %d retries: %d runs, %v", state, retries, runs, err)
			}
			if n := l.n(); (n == 1) != (err == nil) {
				t.Errorf("%s with %d retries: n is %d, %v", state, retries, n, err)
			}
		}
	}
}

// TestP18_WaitersLeaveThePoolAlone: many goroutines that want one key use two connections, so that
// the holder and other callers find one. The control uses a connection for each waiter.
func TestP18_WaitersLeaveThePoolAlone(t *testing.T) {
	t.Parallel()
	const size, waiters = 4, 40
	for _, ours := range []bool{true, false} {
		l := newLedger(t, func(c *pgxpool.Config) { c.MaxConns = size })
		key := advisory.NewKey("pool", t.Name())
		wait := func(ctx context.Context) error {
			if ours {
				return advisory.Do(ctx, l.pool, key, l.increment)
			}
			return pgx.BeginFunc(ctx, l.pool, func(tx pgx.Tx) error {
				return errors.Join(advisory.Lock(ctx, tx, key), l.increment(ctx, tx))
			})
		}
		var all sync.WaitGroup
		waiting := make(chan struct{})
		err := advisory.Do(t.Context(), l.pool, key, func(ctx context.Context, tx pgx.Tx) error {
			for range waiters {
				all.Go(func() {
					if err := wait(soon(t, time.Minute)); err != nil {
						t.Error(err)
					}
				})
			}
			go func() {
				defer close(waiting)
				most := int32(2)
				if !ours {
					most = size
				}
				for l.pool.Stat().AcquiredConns() < most {
					runtime.Gosched()
				}
			}()
			<-waiting
			// The holder needs another connection.
			_, err := l.pool.Exec(soon(t, 2*time.Second), "SELECT 1")
			if ours && err != nil || !ours && !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("ours %v: a statement beside the waiters: %v", ours, err)
			}
			return l.increment(ctx, tx)
		})
		if err != nil {
			t.Error(err)
		}
		all.Wait()
		if n := l.n(); n != waiters+1 {
			t.Errorf("n is %d", n)
		}
		whole(t, l.pool)
	}
}

func TestDoPoolExhausted(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, func(c *pgxpool.Config) { c.MaxConns = 1 })
	key := advisory.NewKey("exhausted", t.Name())
	tx := begin(t, pool)
	for what, call := range map[string]func(ctx context.Context) error{
		"Do": func(ctx context.Context) error {
			return advisory.Do(ctx, pool, key, noWork, advisory.WithPoolWait(50*time.Millisecond))
		},
		"Acquire": func(ctx context.Context) error {
			return second(advisory.Acquire(ctx, pool, key, advisory.WithPoolWait(50*time.Millisecond)))
		},
	} {
		err := call(t.Context())
		if !isAll(err, advisory.ErrPoolExhausted, advisory.ErrNotAcquired) || errors.Is(err, context.DeadlineExceeded) ||
			!strings.Contains(err.Error(), "1 connections of the pool") || !strings.Contains(err.Error(), pool.Config().ConnConfig.Database) {
			t.Errorf("%s: %v", what, err)
		}
		if err := call(soon(t, 10*time.Millisecond)); !isAll(err, context.DeadlineExceeded, advisory.ErrNotAcquired) || errors.Is(err, advisory.ErrPoolExhausted) {
			t.Errorf("%s, whose context ends first: %v", what, err)
		}
	}
	ok(t, tx.Rollback(t.Context()))
	if err := advisory.Do(t.Context(), pool, key, noWork, advisory.WithPoolWait(time.Minute)); err != nil {
		t.Errorf("with the connection back: %v", err)
	}
}

// TestDoOnAConnection: a connection of the caller works too, unless it is in a transaction.
func TestDoOnAConnection(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	key := advisory.NewKey("conn", t.Name())
	conn, err := l.pool.Acquire(t.Context())
	ok(t, err)
	defer conn.Release()
	for _, db := range []advisory.DB{conn, conn.Conn()} {
		ok(t, advisory.Do(t.Context(), db, key, l.increment, advisory.WithIsolation(pgx.Serializable)))
		tx, err := db.BeginTx(t.Context(), pgx.TxOptions{})
		ok(t, err)
		if err := advisory.Do(t.Context(), db, key, l.increment); !errors.Is(err, advisory.ErrTx) {
			t.Errorf("in a transaction: %v", err)
		}
		ok(t, tx.Rollback(t.Context()))
	}
	if l.n() != 2 {
		t.Errorf("n is %d", l.n())
	}
}

// TestDoTimeout: the option or ctx ends the wait for admission, and in the server.
func TestDoTimeout(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	key := advisory.NewKey("timeout", t.Name())
	holder(t, pool, key)
	for range 3 { // two wait in the server, the others for admission
		for _, opts := range [][]advisory.DoOption{
			{}, {advisory.WithIsolation(pgx.RepeatableRead)},
		} {
			t.Run("", func(t *testing.T) {
				t.Parallel()
				err := advisory.Do(t.Context(), pool, key, noWork, append(opts, advisory.WithTimeout(200*time.Millisecond))...)
				if !isAll(err, advisory.ErrNotAcquired, advisory.ErrTimeout) || errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("%v", err)
				}
				err = advisory.Do(soon(t, 200*time.Millisecond), pool, key, noWork, opts...)
				if !isAll(err, advisory.ErrNotAcquired, context.DeadlineExceeded) || errors.Is(err, advisory.ErrTimeout) {
					t.Errorf("%v", err)
				}
			})
		}
	}
}
