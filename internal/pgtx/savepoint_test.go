package pgtx_test

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/pgtx"
)

const savepoint pgtx.Savepoint = "pgtx_test"

// opaque hides the connection and SendBatch of a pgx.Tx.
type opaque struct{ tx pgx.Tx }

func (o opaque) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	return o.tx.Exec(ctx, sql, args...)
}

// eachForm runs test with each form of a transaction: pipelined, by the simple protocol, and
// without a connection. The transaction has a lock_timeout of 17 s.
func eachForm(t *testing.T, test func(t *testing.T, tx pgx.Tx, form pgtx.Execer)) {
	t.Helper()
	for name, mode := range map[string]pgx.QueryExecMode{
		"prepared": pgx.QueryExecModeCacheStatement, "described": pgx.QueryExecModeDescribeExec,
		"simple": pgx.QueryExecModeSimpleProtocol, "opaque": pgx.QueryExecModeCacheStatement,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Pool(t, func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = mode })
			tx := begin(t, pool)
			if _, err := tx.Exec(t.Context(), "SET LOCAL lock_timeout = '17s'"); err != nil {
				t.Fatal(err)
			}
			if name == "opaque" {
				test(t, tx, opaque{tx})
				return
			}
			test(t, tx, tx)
		})
	}
}

func begin(t *testing.T, pool *pgxpool.Pool) pgx.Tx {
	t.Helper()
	tx, err := pool.Begin(t.Context())
	locktest.OK(t, err)
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	return tx
}

// unchanged fails the test unless tx is usable, has its lock_timeout and has no savepoint.
func unchanged(t *testing.T, tx pgx.Tx) {
	t.Helper()
	var setting string
	if err := tx.QueryRow(t.Context(), "SHOW lock_timeout").Scan(&setting); err != nil || setting != "17s" {
		t.Errorf("lock_timeout is %q, %v", setting, err)
	}
	released(t, tx)
}

// released fails the test if the savepoint is still set. It leaves tx usable.
func released(t *testing.T, tx pgx.Tx) {
	t.Helper()
	inner, err := tx.Begin(t.Context())
	locktest.OK(t, err)
	if _, err := inner.Exec(t.Context(), "RELEASE SAVEPOINT "+string(savepoint)); pgtx.SQLState(err) != "3B001" {
		t.Errorf("the savepoint is still set: %v", err)
	}
	if err := inner.Rollback(t.Context()); err != nil {
		t.Error(err)
	}
}

func query(sql string, args ...any) pgtx.Query { return pgtx.Query{SQL: sql, Args: args} }

func TestSavepointExecReleases(t *testing.T) {
	t.Parallel()
	eachForm(t, func(t *testing.T, tx pgx.Tx, form pgtx.Execer) {
		t.Helper()
		for range 2 { // the second time the statement is prepared
			set, err := savepoint.Exec(t.Context(), form, query("SELECT set_config('pgtx.kept', $1, true)", "yes"))
			if err != nil || !set {
				t.Fatalf("%v %v", set, err)
			}
		}
		var kept string
		if err := tx.QueryRow(t.Context(), "SELECT current_setting('pgtx.kept')").Scan(&kept); err != nil || kept != "yes" {
			t.Errorf("the work is %q, %v", kept, err)
		}
		released(t, tx)
	})
}

func TestI9_SavepointUndoRestores(t *testing.T) {
	t.Parallel()
	eachForm(t, func(t *testing.T, tx pgx.Tx, form pgtx.Execer) {
		t.Helper()
		for name, sql := range map[string]string{
			"runtime error": "SELECT set_config('lock_timeout', '1s', true), 1 / ($1::integer - 1)",
			"parse error":   "SELECT no_such_column + $1::integer",
		} {
			set, err := savepoint.Exec(t.Context(), form, query(sql, 1))
			if err == nil || !set {
				t.Fatalf("%s: %v %v", name, set, err)
			}
			if err := savepoint.Undo(t.Context(), form); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			unchanged(t, tx)
		}
	})
}

func TestI9_SavepointExecCanceled(t *testing.T) {
	t.Parallel()
	direct := pgtest.Pool(t)
	eachForm(t, func(t *testing.T, tx pgx.Tx, form pgtx.Execer) {
		t.Helper()
		if _, ok := form.(opaque); ok {
			return // pgx closes a connection that it is not allowed to cancel on
		}
		holder := begin(t, direct)
		const lock = "SELECT pg_advisory_xact_lock(hashtext($1))"
		if _, err := holder.Exec(t.Context(), lock, t.Name()); err != nil {
			t.Fatal(err)
		}
		pid := tx.Conn().PgConn().PID()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		result := make(chan error, 1)
		go func() {
			set, err := savepoint.Exec(ctx, form, query(lock, t.Name()))
			if !set {
				err = errors.Join(err, errors.New("the savepoint is not set"))
			}
			result <- err
		}()
		pgtest.Eventually(t, "the statement waits", func() bool {
			var waits bool
			err := direct.QueryRow(t.Context(), "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = $1", pid).Scan(&waits)
			return err == nil && waits
		})
		cancel()
		if err := <-result; pgtx.SQLState(err) != pgtx.QueryCanceled {
			t.Errorf("%v", err)
		}
		if err := savepoint.Undo(ctx, form); err != nil { // it works with a context that is done
			t.Error(err)
		}
		unchanged(t, tx)
	})
}

func TestSavepointOnAnEndedTransaction(t *testing.T) {
	t.Parallel()
	eachForm(t, func(t *testing.T, tx pgx.Tx, form pgtx.Execer) {
		t.Helper()
		locktest.OK(t, tx.Rollback(t.Context()))
		if set, err := savepoint.Exec(t.Context(), form, query("SELECT 1")); set || !pgtx.Unusable(err) {
			t.Errorf("%v %v", set, err)
		}
		if err := savepoint.Undo(t.Context(), form); !errors.Is(err, errs.ErrTx) {
			t.Errorf("Undo: %v", err)
		}
	})
}

// canceledOnce is a transaction whose first rollback to the savepoint is canceled, as by a
// request that a pooler delivers late.
type canceledOnce struct {
	pgtx.Execer
	rollbacks int
}

func (c *canceledOnce) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	if c.rollbacks++; c.rollbacks == 1 {
		return pgconn.CommandTag{}, &pgconn.PgError{Code: pgtx.QueryCanceled}
	}
	return c.Execer.Exec(ctx, sql, args...)
}

func TestI9_UndoSurvivesALateCancellation(t *testing.T) {
	t.Parallel()
	tx := begin(t, pgtest.Pool(t))
	locktest.OK(t, savepoint.Set(t.Context(), tx))
	late := &canceledOnce{Execer: tx}
	if err := savepoint.Undo(t.Context(), late); err != nil || late.rollbacks != 2 {
		t.Errorf("%d rollbacks, %v", late.rollbacks, err)
	}
}

// TestEndedTransactionLeavesItsConnectionAlone: the connection may serve another transaction.
func TestEndedTransactionLeavesItsConnectionAlone(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, func(c *pgxpool.Config) { c.MaxConns = 1 })
	ended := begin(t, pool)
	locktest.OK(t, ended.Rollback(t.Context()))
	other := begin(t, pool)
	set, err := savepoint.Exec(t.Context(), ended, query("SELECT set_config('pgtx.kept', $1, false)", "yes"))
	if set || !errors.Is(err, pgx.ErrTxClosed) {
		t.Errorf("%v %v", set, err)
	}
	var kept string
	if err := other.QueryRow(t.Context(), "SELECT coalesce(current_setting('pgtx.kept', true), '')").Scan(&kept); err != nil || kept != "" {
		t.Errorf("the statement ran in another transaction: %q, %v", kept, err)
	}
}

// TestExecAllTakesOneRoundTrip, and one more for a batch whose statements are prepared first.
func TestExecAllTakesOneRoundTrip(t *testing.T) {
	t.Parallel()
	tx := begin(t, pgtest.Pool(t, pgtest.CountTurns))
	one, two := query("SELECT 1"), query("SELECT $1::text", "x")
	for _, tc := range []struct {
		queries []pgtx.Query
		turns   int64
	}{{[]pgtx.Query{one}, 1}, {[]pgtx.Query{one, two}, 2}, {[]pgtx.Query{one, two}, 1}} {
		before := pgtest.Turns(tx.Conn())
		locktest.OK(t, pgtx.ExecAll(t.Context(), tx, tc.queries...))
		if n := pgtest.Turns(tx.Conn()) - before; n != tc.turns {
			t.Errorf("%d queries: %d round trips, want %d", len(tc.queries), n, tc.turns)
		}
	}
}
