package sqltx_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock/sqltx"
)

type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

var _ advisory.Tx = (*sqltx.Tx)(nil)

func TestExecPassesArgumentsOn(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	_, tx := f.begin()
	f.exec(tx, "CREATE TEMP TABLE t (id int, tags text[]) ON COMMIT DROP")
	tag, err := tx.Exec(t.Context(), "INSERT INTO t SELECT n, $1 FROM generate_series(1, $2) n", []string{"a", "b"}, 3)
	if err != nil || tag.RowsAffected() != 3 {
		t.Errorf("%v %v", tag, err)
	}
	tag, err = tx.Exec(t.Context(), "DELETE FROM t WHERE id = @id", pgx.NamedArgs{"id": 2})
	if err != nil || tag.RowsAffected() != 1 {
		t.Errorf("named: %v %v", tag, err)
	}
	if n := value[int](t, tx, "SELECT count(*) FROM t WHERE tags = $1", []string{"a", "b"}); n != 2 {
		t.Errorf("%d rows", n)
	}
	if s := value[*string](t, tx, "SELECT $1::text", nil); s != nil {
		t.Errorf("NULL came back as %q", *s)
	}
	var pg *pgconn.PgError
	if _, err := tx.Exec(t.Context(), "DELETE FROM no_such_table"); !errors.As(err, &pg) || pg.Code != "42P01" {
		t.Errorf("no table: %v", err)
	}
}

// TestEndedTransactionIsErrTxClosed, and so is one that never was. The error of one that database/sql
// has ended is also its own.
func TestEndedTransactionIsErrTxClosed(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	_, committed := f.begin()
	ok(t, committed.Commit(t.Context()))
	_, rolledBack := f.begin()
	ok(t, rolledBack.Rollback(t.Context()))
	for name, tx := range map[string]*sqltx.Tx{
		"committed": committed, "rolled back": rolledBack, "of nil": sqltx.Wrap(nil), "itself nil": nil, "zero": {},
	} {
		_, execErr := tx.Exec(t.Context(), "SELECT 1")
		for what, err := range map[string]error{
			"Exec": execErr, "Query": queryError(t, tx), "Scan": tx.QueryRow(t.Context(), "SELECT 1").Scan(nil),
			"Commit": tx.Commit(t.Context()), "Rollback": tx.Rollback(t.Context()),
		} {
			if began := tx == committed || tx == rolledBack; !errors.Is(err, pgx.ErrTxClosed) || errors.Is(err, sql.ErrTxDone) != began {
				t.Errorf("%s, then %s: %v", name, what, err)
			}
		}
		if err := advisory.Lock(t.Context(), tx, advisory.KeyFromInt64(1)); !errors.Is(err, advisory.ErrTx) {
			t.Errorf("%s, then Lock: %v", name, err)
		}
	}
}

// TestTransactionInThePlaceOfAPool: a function that takes a pool of pgx takes a transaction.
func TestTransactionInThePlaceOfAPool(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	schema := pgtest.Schema(t, f.pool)
	_, tx := f.begin()
	table := pgx.Identifier{schema, "kept"}.Sanitize()
	f.exec(tx, "CREATE TABLE "+table+" (id int)")
	ok(t, fencing.Protect(t.Context(), tx, table, fencing.WithSchema(schema)))
	if _, err := tx.Exec(t.Context(), "INSERT INTO "+table+" VALUES (1)"); !errors.Is(fencing.Explain(err), fencing.ErrUnfenced) {
		t.Errorf("%v", err)
	}
}

// TestI9_CanceledStatementLeavesTheTransaction: pgx alone would close the connection; here the
// statement is canceled, and the transaction can be rolled back to its savepoint.
func TestI9_CanceledStatementLeavesTheTransaction(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	holder := f.pgx()
	f.exec(holder, "SELECT pg_advisory_xact_lock(hashtext($1))", t.Name())
	_, tx := f.begin()
	pid := value[int](t, tx, "SELECT pg_backend_pid()")
	f.exec(tx, "SAVEPOINT s")

	boom := errors.New("boom")
	ctx, cancel := context.WithCancelCause(t.Context())
	failed := make(chan error, 1)
	go func() {
		_, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock(hashtext($1))", t.Name())
		failed <- err
	}()
	f.waiting(pid)
	cancel(boom)
	var pg *pgconn.PgError
	if err := <-failed; !errors.As(err, &pg) || pg.Code != "57014" || !errors.Is(err, context.Canceled) || !errors.Is(err, boom) {
		t.Errorf("%v", err)
	}
	f.exec(tx, "ROLLBACK TO s")
	if again := value[int](t, tx, "SELECT pg_backend_pid()"); again != pid {
		t.Errorf("backend %d became %d", pid, again)
	}
	if _, err := tx.Exec(ctx, "SELECT 1"); !errors.Is(err, context.Canceled) || !errors.Is(err, boom) {
		t.Errorf("with a context that has ended: %v", err)
	}
	if err := tx.Commit(ctx); err != nil { // it ignores ctx
		t.Error(err)
	}
}

// TestBeginTxContextEndsTheTransaction: database/sql rolls back, and nothing hangs.
func TestBeginTxContextEndsTheTransaction(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	holder := f.pgx()
	f.exec(holder, "SELECT pg_advisory_xact_lock(hashtext($1))", t.Name())
	ctx, cancel := context.WithCancel(t.Context())
	std, err := f.db.BeginTx(ctx, nil)
	ok(t, err)
	tx := sqltx.Wrap(std)
	pid := value[int](t, tx, "SELECT pg_backend_pid()")
	failed := make(chan error, 1)
	go func() {
		_, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock(hashtext($1))", t.Name())
		failed <- err
	}()
	f.waiting(pid)
	cancel()
	if err := locktest.Receive(t, failed); err == nil {
		t.Error("no error")
	}
	if err := tx.Rollback(t.Context()); err != nil && !errors.Is(err, pgx.ErrTxClosed) {
		t.Error(err)
	}
}
