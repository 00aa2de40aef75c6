package fencing_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/pglock/sqltx"
)

// account is a row of the mapper below. It has no field for a token.
type account struct{ ID, Balance int }

// mapper writes accounts as an object mapper does: on database/sql, with generated statements, in
// its own transaction or the caller's. It does not use locks.
type mapper struct {
	table string
	db    interface {
		PrepareContext(ctx context.Context, query string) (*sql.Stmt, error)
	}
}

// call carries out one of the statements that the mapper has generated, which changes one row.
func (m mapper) call(ctx context.Context, name string) error {
	query := map[string]string{
		"create": "INSERT INTO %s (id, balance) VALUES ($1, $2)",
		"save":   "INSERT INTO %s (id, balance) VALUES ($1, $2) ON CONFLICT (id) DO UPDATE SET balance = excluded.balance",
		"update": "UPDATE %s SET balance = $2 WHERE id = $1",
		"remove": "DELETE FROM %s WHERE id = $1 AND balance <> $2",
	}[name]
	a := map[string]account{"create": {3, 0}, "save": {1, 11}, "update": {1, 12}, "remove": {2, 0}}[name]
	statement, err := m.db.PrepareContext(ctx, sprintf(query, m.table))
	if err != nil {
		return err
	}
	defer statement.Close()
	result, err := statement.ExecContext(ctx, a.ID, a.Balance)
	if err != nil {
		return err
	}
	if n, err := result.RowsAffected(); err != nil || n != 1 {
		return errors.Join(err, errors.New("mapper: not one row"))
	}
	return nil
}

// TestObjectMapperIsFenced: in strict mode, every write by code without tokens is refused, and
// reads pass. In a transaction that has bound a grant, the same code can write until a newer grant
// has.
func TestObjectMapperIsFenced(t *testing.T) {
	t.Parallel()
	g := newFixture(t)
	table := g.table("accounts", "(id int PRIMARY KEY, balance int)")
	g.sql("INSERT INTO " + table + " VALUES (1, 10), (2, 10)")
	g.protect(table)
	db := stdlib.OpenDBFromPool(g.writer)
	defer db.Close()
	ctx := t.Context()

	// inTx makes the call in a transaction of its own, after begin, and commits.
	inTx := func(begin func(*sql.Tx) error, name string) error {
		tx, err := db.BeginTx(ctx, nil)
		ok(t, err)
		defer func() { _ = tx.Rollback() }() // after the commit it does nothing
		if err := begin(tx); err != nil {
			return err
		}
		if err := (mapper{table, tx}).call(ctx, name); err != nil {
			return fencing.Explain(err)
		}
		return fencing.Explain(tx.Commit())
	}
	calls := []string{"create", "save", "update", "remove"}
	nothing := func(*sql.Tx) error { return nil }
	for _, name := range calls {
		want(t, name+" by itself", fencing.Explain(mapper{table, db}.call(ctx, name)), fencing.ErrUnfenced)
		want(t, name+" in a transaction without a grant", inTx(nothing, name), fencing.ErrUnfenced)
	}
	g.holds(table, "(1,10,) (2,10,)")
	var a account
	if err := db.QueryRowContext(ctx, "SELECT id, balance FROM "+table+" WHERE id = $1", 1).Scan(&a.ID, &a.Balance); err != nil || a != (account{1, 10}) {
		t.Errorf("reading: %v, %v", a, err)
	}

	early, late := g.grant("early", time.Minute), g.grant("late", time.Minute)
	bind := func(f fencing.Fence) func(*sql.Tx) error {
		return func(tx *sql.Tx) error { return fencing.Bind(ctx, sqltx.Wrap(tx), f) }
	}
	for _, name := range calls {
		want(t, name+" with a grant", inTx(bind(late), name), nil)
	}
	g.holds(table, "(1,12,%[1]d) (3,0,%[1]d)", late.Token)
	for _, name := range []string{"save", "update"} {
		wantStale(t, name+" with an earlier grant", inTx(bind(early), name), fencing.StaleError{Resource: "early", Token: early.Token, Current: late.Token})
	}
	next := g.grant("late", time.Minute)
	want(t, "a grant that was taken over", inTx(bind(late), "update"), fencing.ErrStale)
	want(t, "the next one", inTx(bind(next), "update"), nil)
	g.holds(table, "(1,12,%d) (3,0,%d)", next.Token, late.Token)
}
