package advisory_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/internal/pgtest"
)

// TestP35_PoolerInTransactionMode: transaction locks work through the pooler, at every isolation
// level, and session locks are refused, whether it has many server connections or only one.
func TestP35_PoolerInTransactionMode(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	modes, settings := pgtest.PoolerModes()
	for _, size := range []int{1, 2, 20} {
		through := pgtest.Pooler(t, pgtest.URL(t), "transaction", append(settings, fmt.Sprintf("default_pool_size = %d", size))...)
		for _, mode := range modes {
			pool := pgtest.PoolOn(t, through, func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = mode })
			key := advisory.NewKey("pooler", fmt.Sprint(t.Name(), size, mode))
			l.exec("UPDATE " + l.table + " SET n = 0")
			const workers, rounds = 6, 5
			var all sync.WaitGroup
			for i := range workers {
				all.Go(func() {
					for range rounds {
						level := []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable}[i%3]
						err := advisory.Do(soon(t, time.Minute), pool, key, l.increment,
							advisory.WithIsolation(level), advisory.WithTimeout(time.Minute), advisory.WithRetry(10))
						if err != nil {
							t.Errorf("%d connections, %v, %s: %v", size, mode, level, err)
						}
					}
				})
			}
			all.Wait()
			if n := l.n(); n != workers*rounds {
				t.Errorf("%d connections, %v: n is %d", size, mode, n)
			}
			tx := begin(t, pool)
			if err := advisory.Lock(t.Context(), tx, key, advisory.WithTimeout(time.Second)); err != nil {
				t.Errorf("Lock: %v", err)
			}
			if size > 1 {
				other := begin(t, pool)
				if err := advisory.Lock(t.Context(), other, key, advisory.WithTimeout(50*time.Millisecond)); !isAll(err, advisory.ErrTimeout) {
					t.Errorf("Lock of a lock that is held: %v", err)
				}
				ctx, cancel := context.WithCancel(t.Context())
				time.AfterFunc(50*time.Millisecond, cancel)
				if err := advisory.Lock(ctx, other, key); !isAll(err, context.Canceled) {
					t.Errorf("Lock, canceled: %v", err)
				}
				usable(t, other)
				_ = other.Rollback(t.Context())
			}
			_ = tx.Rollback(t.Context())
			for range 5 {
				s, err := advisory.Acquire(soon(t, 20*time.Second), pool, key)
				if !errors.Is(err, advisory.ErrPooled) {
					t.Errorf("%d connections, %v: a session lock: %v", size, mode, err)
					_ = s.Release(t.Context())
				}
			}
			if n := locksOn(t, l.pool, key); n != 0 {
				t.Errorf("%d connections, %v: %d locks were left with the pooler", size, mode, n)
			}
			pool.Close()
		}
	}
}

// TestP35_PoolerControl acquires a session lock through the pooler without a check: the lock stays
// behind when its client is gone.
func TestP35_PoolerControl(t *testing.T) {
	t.Parallel()
	direct := pgtest.Pool(t)
	through := pgtest.Pooler(t, pgtest.URL(t), "transaction")
	conn, err := pgx.Connect(t.Context(), through)
	ok(t, err)
	if _, err := conn.Exec(t.Context(), "SELECT pg_advisory_lock(353535)"); err != nil {
		t.Fatal(err)
	}
	ok(t, conn.Close(t.Context()))
	if n := locksOn(t, direct, advisory.KeyFromInt64(353535)); n != 1 {
		t.Errorf("%d locks were left: then the refusal proves nothing", n)
	}
}

// TestPoolerInSessionMode: session locks work through a pooler in session mode.
func TestPoolerInSessionMode(t *testing.T) {
	t.Parallel()
	direct := pgtest.Pool(t)
	pool := pgtest.PoolOn(t, pgtest.Pooler(t, pgtest.URL(t), "session"))
	key := advisory.NewKey("pooler", t.Name())
	for range 5 {
		s, err := advisory.Acquire(soon(t, 20*time.Second), pool, key, advisory.WithKeepAliveTimeout(time.Second))
		ok(t, err)
		probed(t, direct, s)
		if s.Err() != nil {
			t.Errorf("lost: %v", s.Err())
		}
		if n := locksOn(t, direct, key); n != 1 {
			t.Errorf("%d locks", n)
		}
		ok(t, s.Release(t.Context()))
	}
	if n := locksOn(t, direct, key); n != 0 {
		t.Errorf("%d locks are left", n)
	}
}

// TestP35_RoundRobinPooler: a pooler that rotates its sessions gives two connections that take
// turns the same sessions every time.
func TestP35_RoundRobinPooler(t *testing.T) {
	t.Parallel()
	through := pgtest.Pooler(t, pgtest.URL(t), "transaction", "server_round_robin = 1")
	for _, sessions := range []int{2, 3, 4} {
		warm := pgtest.PoolOn(t, through, plain)
		var all []pgx.Tx
		for range sessions {
			all = append(all, begin(t, warm))
		}
		for _, tx := range all {
			ok(t, tx.Rollback(t.Context()))
		}
		for range 4 {
			refused(t, through)
		}
	}
}

// TestP35_BusyPooler: with other clients at work, a connection may get the same session by chance.
func TestP35_BusyPooler(t *testing.T) {
	t.Parallel()
	through := pgtest.Pooler(t, pgtest.URL(t), "transaction", "default_pool_size = 4")
	load := pgtest.PoolOn(t, through, plain)
	ctx, cancel := context.WithCancel(t.Context())
	var others sync.WaitGroup
	for range 8 {
		others.Go(func() {
			for ctx.Err() == nil {
				_, _ = load.Exec(ctx, "SELECT pg_sleep(0.0005)") // ends with ctx
			}
		})
	}
	for range 30 {
		refused(t, through)
	}
	cancel()
	others.Wait()
}

// TestI9_CancelWhileThePoolerIsFull: the second connection, which detects poolers, may wait long.
func TestI9_CancelWhileThePoolerIsFull(t *testing.T) {
	t.Parallel()
	through := pgtest.Pooler(t, pgtest.URL(t), "session", "default_pool_size = 1", "query_wait_timeout = 60")
	pool := pgtest.PoolOn(t, through)
	begun := time.Now()
	_, err := advisory.Acquire(soon(t, 500*time.Millisecond), pool, advisory.NewKey("pooler", t.Name()))
	if took := time.Since(begun); !isAll(err, advisory.ErrNotAcquired, context.DeadlineExceeded) || took > 20*time.Second {
		t.Errorf("after %v: %v", took, err)
	}
	whole(t, pool)
}

// plain configures a pool for poolers that do not support prepared statements.
func plain(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol }

// refused fails the test unless the pooler is detected on a new connection.
func refused(t *testing.T, through string) {
	t.Helper()
	pool := pgtest.PoolOn(t, through, plain)
	defer pool.Close()
	s, err := advisory.TryAcquire(soon(t, time.Minute), pool, advisory.NewKey("pooler", t.Name()))
	if errors.Is(err, advisory.ErrPooled) {
		return
	}
	t.Errorf("a session lock behind a pooler in transaction mode: %v", err)
	if err == nil {
		_ = s.Release(t.Context())
	}
}
