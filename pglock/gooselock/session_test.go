package gooselock

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
)

// TestI9_CanceledWaitLeavesNoLock: the end of a wait for the second lock releases the first, also if
// the connection returns to a pool of pgx.
func TestI9_CanceledWaitLeavesNoLock(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(t *testing.T, url string) *sql.DB{
		"database/sql": func(t *testing.T, url string) *sql.DB {
			t.Helper()
			return stdlib.OpenDB(*pgtest.PoolOn(t, url).Config().ConnConfig)
		},
		"pgxpool": func(t *testing.T, url string) *sql.DB {
			t.Helper()
			return stdlib.OpenDBFromPool(pgtest.PoolOn(t, url))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const key = 7
			url := pgtest.Database(t)
			pool := pgtest.PoolOn(t, url)
			holder, err := pool.Acquire(t.Context())
			locktest.OK(t, err)
			defer holder.Release()
			if _, err := holder.Exec(t.Context(), "SELECT pg_advisory_lock($1)", key); err != nil {
				t.Fatal(err)
			}
			db := open(t, url)
			defer db.Close()
			l, err := NewSessionLocker("m", WithKey(key))
			locktest.OK(t, err)
			conn, err := db.Conn(t.Context())
			locktest.OK(t, err)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			ended := make(chan error, 1)
			go func() { ended <- l.SessionLock(ctx, conn) }()
			pgtest.Eventually(t, "the first lock is held", func() bool {
				return locktest.Scan[int](t, pool, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())") == 2
			})
			cancel()
			if err := <-ended; !errors.Is(err, pglock.ErrNotAcquired) || !errors.Is(err, context.Canceled) {
				t.Errorf("while another session holds the second lock: %v", err)
			}
			_ = conn.Close() // SessionLock may have closed it
			if _, err := holder.Exec(t.Context(), "SELECT pg_advisory_unlock($1)", key); err != nil {
				t.Fatal(err)
			}
			locktest.NoLockLeft(t, pool)
		})
	}
}
