package advisory_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/internal/pgtest"
)

// allModes lists the ways in which pgx sends statements.
var allModes = []pgx.QueryExecMode{
	pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec,
	pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
}

// waitingLocks returns the calls that wait in the server.
func waitingLocks(key advisory.Key) map[string]func(ctx context.Context, tx pgx.Tx) error {
	return map[string]func(ctx context.Context, tx pgx.Tx) error{
		"Lock":       func(ctx context.Context, tx pgx.Tx) error { return advisory.Lock(ctx, tx, key) },
		"LockShared": func(ctx context.Context, tx pgx.Tx) error { return advisory.LockShared(ctx, tx, key) },
		"Lock, timeout": func(ctx context.Context, tx pgx.Tx) error {
			return advisory.Lock(ctx, tx, key, advisory.WithTimeout(time.Minute))
		},
		"LockAll": func(ctx context.Context, tx pgx.Tx) error {
			return advisory.LockAll(ctx, tx, []advisory.Key{key, advisory.KeyFromInt64(22)})
		},
	}
}

// TestI9_CancelWhilePreparing cancels each call while the server parses its statement. A lock on
// the catalog of functions keeps the server there. The transaction remains usable, since the
// savepoint comes first.
func TestI9_CancelWhilePreparing(t *testing.T) {
	t.Parallel()
	direct := pgtest.Pool(t)
	for _, mode := range allModes {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			pool := pgtest.PoolOn(t, pgtest.Database(t), func(c *pgxpool.Config) {
				c.ConnConfig.DefaultQueryExecMode = mode
				c.MaxConns = 12
			})
			key := advisory.NewKey("prepare", t.Name())
			fresh := func() pgx.Tx { // on a server process that has not cached the function
				pool.Reset()
				return begin(t, pool)
			}
			for name, call := range waitingLocks(key) {
				for what, tx := range map[string]pgx.Tx{"": fresh(), ", nested": nested(t, fresh())} {
					cancelInParse(t, direct, begin(t, pool), tx, name+what, func(ctx context.Context) error { return call(ctx, tx) })
					if n := held(t, tx); n != 0 {
						t.Errorf("%s: %d locks are held", name+what, n)
					}
					if err := call(t.Context(), tx); err != nil {
						t.Errorf("%s, again: %v", name+what, err)
					}
					ok(t, tx.Rollback(t.Context()))
				}
			}
		})
	}
}

// nested returns a nested transaction of tx.
func nested(t *testing.T, tx pgx.Tx) pgx.Tx {
	t.Helper()
	inner, err := tx.Begin(t.Context())
	ok(t, err)
	return inner
}

// cancelInParse runs call, whose statement the server can't parse before blocker ends, and
// cancels it there.
func cancelInParse(t *testing.T, direct *pgxpool.Pool, blocker, tx pgx.Tx, name string, call func(context.Context) error) {
	t.Helper()
	if _, err := blocker.Exec(t.Context(), "LOCK TABLE pg_catalog.pg_proc IN ACCESS EXCLUSIVE MODE"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	result := make(chan error, 1)
	go func() { result <- call(ctx) }()
	pgtest.Eventually(t, name+": the server is parsing", func() bool {
		return count(t, direct, "SELECT count(*) FROM pg_stat_activity WHERE pid = $1 AND wait_event_type = 'Lock' AND wait_event = 'relation'",
			tx.Conn().PgConn().PID()) == 1
	})
	cancel()
	err := <-result
	if e := blocker.Rollback(t.Context()); e != nil {
		t.Fatal(e)
	}
	if !isAll(err, advisory.ErrNotAcquired, context.Canceled) || errors.Is(err, advisory.ErrTx) {
		t.Errorf("%s: %v", name, err)
	}
	usable(t, tx)
}

// TestI9_NoCancelRequestBeforeTheSavepoint withholds the server's answers, cancels the call, and
// counts requests to cancel. One that arrives before the savepoint is set would abort the caller's
// transaction, so there must be none until the server has confirmed the savepoint.
func TestI9_NoCancelRequestBeforeTheSavepoint(t *testing.T) {
	t.Parallel()
	direct := pgtest.Pool(t)
	for _, mode := range allModes {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			proxy, pool := proxied(t, func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = mode })
			key := advisory.NewKey("prepare", t.Name())
			for name, call := range waitingLocks(key) {
				for _, prepared := range []bool{false, true} {
					before, tx := holder(t, direct, key), begin(t, pool)
					ctx, cancel := context.WithCancel(t.Context())
					if prepared {
						short := soon(t, 20*time.Millisecond)
						if err := call(short, tx); !errors.Is(err, advisory.ErrNotAcquired) {
							t.Errorf("%s: %v", name, err)
						}
					}
					proxy.HoldReplies()
					dials := proxy.Stats().Accepted
					result := make(chan error, 1)
					go func() { result <- call(ctx, tx) }()
					time.AfterFunc(20*time.Millisecond, cancel)
					// Long after the cancellation, and before the connection is closed.
					<-time.After(300 * time.Millisecond)
					if n := proxy.Stats().Accepted - dials; n != 0 {
						t.Errorf("%s, prepared %v: %d requests to cancel before the savepoint is known to be set", name, prepared, n)
					}
					proxy.Heal()
					if err := <-result; !isAll(err, advisory.ErrNotAcquired, context.Canceled) || errors.Is(err, advisory.ErrTx) {
						t.Errorf("%s, prepared %v: %v", name, prepared, err)
					}
					usable(t, tx)
					_, _ = tx.Rollback(t.Context()), before.Rollback(t.Context())
				}
			}
		})
	}
}

// TestLockTakesOneRoundTrip, also the first time, when nothing is prepared. The simple protocol
// can't confirm the savepoint before the lock, and takes two.
func TestLockTakesOneRoundTrip(t *testing.T) {
	t.Parallel()
	for _, mode := range allModes {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Pool(t, pgtest.CountTurns, func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = mode })
			want := int64(1)
			if mode == pgx.QueryExecModeSimpleProtocol {
				want = 2
			}
			for name, call := range waitingLocks(advisory.NewKey("round trips", t.Name())) {
				for range 2 {
					tx := begin(t, pool)
					before := pgtest.Turns(tx.Conn())
					if err := call(t.Context(), tx); err != nil {
						t.Errorf("%s: %v", name, err)
					}
					if n := pgtest.Turns(tx.Conn()) - before; n != want {
						t.Errorf("%s: %d round trips, want %d", name, n, want)
					}
					_ = tx.Rollback(t.Context())
				}
			}
		})
	}
}

// TestLockPreparesAgain: after DEALLOCATE ALL, or after a preparation that was canceled, Lock
// prepares its statement again.
func TestLockPreparesAgain(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, func(c *pgxpool.Config) { c.MaxConns = 1 })
	for name, call := range waitingLocks(advisory.NewKey("prepare", t.Name())) {
		tx := begin(t, pool)
		for _, between := range []string{"SELECT 1", "DEALLOCATE ALL", "SELECT 1"} {
			if err := call(t.Context(), tx); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if n := count(t, tx, "SELECT count(*) FROM pg_prepared_statements WHERE name LIKE 'pglock%'", pgx.QueryExecModeExec); n == 0 {
				t.Errorf("%s: nothing is prepared", name)
			}
			if _, err := tx.Exec(t.Context(), between, pgx.QueryExecModeExec); err != nil {
				t.Fatal(err)
			}
		}
		_ = tx.Rollback(t.Context())
	}
}
