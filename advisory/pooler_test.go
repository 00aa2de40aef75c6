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

// TestP35_PoolerInTransactionMode: transaction locks work through it, at every isolation level, and session locks
// are refused, whether it has other connections at hand or only one.
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
					t.Errorf("Lock, cancelled: %v", err)
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

// TestP35_PoolerControl takes a session lock through the pooler without asking: it stays behind when its client
// has gone.
func TestP35_PoolerControl(t *testing.T) {
	t.Parallel()
	direct := pgtest.Pool(t)
	through := pgtest.Pooler(t, pgtest.URL(t), "transaction")
	conn, err := pgx.Connect(t.Context(), through)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), "SELECT pg_advisory_lock(353535)"); err != nil {
		t.Fatal(err)
	}
	if err := conn.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := locksOn(t, direct, advisory.KeyFromInt64(353535)); n != 1 {
		t.Errorf("%d locks were left: then refusing shows nothing", n)
	}
}

// TestPoolerInSessionMode: that one is no harm.
func TestPoolerInSessionMode(t *testing.T) {
	t.Parallel()
	direct := pgtest.Pool(t)
	pool := pgtest.PoolOn(t, pgtest.Pooler(t, pgtest.URL(t), "session"))
	key := advisory.NewKey("pooler", t.Name())
	for range 5 {
		s, err := advisory.Acquire(soon(t, 20*time.Second), pool, key, advisory.WithNotice(time.Second))
		if err != nil {
			t.Fatal(err)
		}
		select {
		case <-s.Done():
			t.Errorf("lost: %v", s.Err())
		case <-time.After(300 * time.Millisecond):
		}
		if n := locksOn(t, direct, key); n != 1 {
			t.Errorf("%d locks", n)
		}
		if err := s.Release(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if n := locksOn(t, direct, key); n != 0 {
		t.Errorf("%d locks are left", n)
	}
}
