package sqltx_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock/sqltx"
)

// TestI9_CancelWhilePreparing cancels each kind of lock while the server parses its statement. A
// lock on the catalog of functions keeps the server there. The transaction remains usable, since
// the savepoint comes first.
func TestI9_CancelWhilePreparing(t *testing.T) {
	t.Parallel()
	direct := newFixture(t)
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec,
		pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
	} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			config, err := pgx.ParseConfig(pgtest.Database(t))
			if err != nil {
				t.Fatal(err)
			}
			config.DefaultQueryExecMode = mode
			db := stdlib.OpenDB(*config)
			defer db.Close()
			// A server process for each transaction, which has not cached the function.
			db.SetMaxIdleConns(-1)
			k := keys(t, "a", "b")
			for name, call := range map[string]func(ctx context.Context, tx advisory.Tx) error{
				"Lock": func(ctx context.Context, tx advisory.Tx) error { return advisory.Lock(ctx, tx, k[0]) },
				"Lock, timeout": func(ctx context.Context, tx advisory.Tx) error {
					return advisory.Lock(ctx, tx, k[0], advisory.WithTimeout(time.Minute))
				},
				"LockAll": func(ctx context.Context, tx advisory.Tx) error { return advisory.LockAll(ctx, tx, k) },
			} {
				blocker, err := db.BeginTx(t.Context(), nil)
				if err != nil {
					t.Fatal(err)
				}
				tx, err := db.BeginTx(t.Context(), nil)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := blocker.ExecContext(t.Context(), "LOCK TABLE pg_catalog.pg_proc IN ACCESS EXCLUSIVE MODE"); err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithCancel(t.Context())
				result := make(chan error, 1)
				go func() { result <- call(ctx, sqltx.Wrap(tx)) }()
				pgtest.Eventually(t, 10*time.Second, name+": the server is parsing", func() bool {
					return value[bool](t, direct.pool, `SELECT EXISTS (SELECT FROM pg_stat_activity
						WHERE datname = $1 AND wait_event_type = 'Lock' AND wait_event = 'relation')`, config.Database)
				})
				cancel()
				if err := <-result; !errors.Is(err, advisory.ErrNotAcquired) || !errors.Is(err, context.Canceled) || errors.Is(err, advisory.ErrTx) {
					t.Errorf("%s: %v", name, err)
				}
				if err := blocker.Rollback(); err != nil {
					t.Fatal(err)
				}
				if err := call(t.Context(), sqltx.Wrap(tx)); err != nil {
					t.Errorf("%s, again: %v", name, err)
				}
				if err := tx.Rollback(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// TestI9_NothingIsCanceledOutsideTheSavepoint withholds the server's answers, and cancels each kind
// of lock during its first round trip. That sets the savepoint, or is a try, which waits for
// nothing: neither may be canceled.
func TestI9_NothingIsCanceledOutsideTheSavepoint(t *testing.T) {
	t.Parallel()
	direct := newFixture(t)
	for name, call := range map[string]func(ctx context.Context, tx advisory.Tx, k []advisory.Key) error{
		"Lock": func(ctx context.Context, tx advisory.Tx, k []advisory.Key) error { return advisory.Lock(ctx, tx, k[0]) },
		"LockAll": func(ctx context.Context, tx advisory.Tx, k []advisory.Key) error {
			return advisory.LockAll(ctx, tx, k)
		},
		"TryLock": func(ctx context.Context, tx advisory.Tx, k []advisory.Key) error {
			return advisory.TryLock(ctx, tx, k[0])
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var replies pgtest.ReplyGate
			config := direct.pool.Config().ConnConfig.Copy()
			replies.On(config)
			db := stdlib.OpenDB(*config)
			defer db.Close()
			tx, err := db.BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			replies.Hold()
			dials := replies.Dials()
			result := make(chan error, 1)
			go func() { result <- call(ctx, sqltx.Wrap(tx), keys(t, "a", "b")) }()
			time.AfterFunc(20*time.Millisecond, cancel)
			// Long after the cancellation, and before the connection is closed.
			<-time.After(300 * time.Millisecond)
			if n := replies.Dials() - dials; n != 0 {
				t.Errorf("%d requests to cancel what is not in the savepoint", n)
			}
			replies.Release()
			if err := <-result; err != nil && !errors.Is(err, context.Canceled) || errors.Is(err, advisory.ErrTx) {
				t.Error(err)
			}
			if one := value[int](t, sqltx.Wrap(tx), "SELECT 1"); one != 1 {
				t.Error(one)
			}
			if err := tx.Rollback(); err != nil {
				t.Error(err)
			}
		})
	}
}
