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
		QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
	}
}

func (m mapper) exec(ctx context.Context, query string, args ...any) error {
	statement, err := m.db.PrepareContext(ctx, query)
	if err != nil {
		return err
	}
	defer statement.Close()
	result, err := statement.ExecContext(ctx, args...)
	if err != nil {
		return err
	}
	if n, err := result.RowsAffected(); err != nil || n != 1 {
		return errors.Join(err, errors.New("mapper: not one row"))
	}
	return nil
}

func (m mapper) create(ctx context.Context, a account) error {
	return m.exec(ctx, "INSERT INTO "+m.table+" (id, balance) VALUES ($1, $2)", a.ID, a.Balance)
}

func (m mapper) save(ctx context.Context, a account) error {
	return m.exec(ctx, "INSERT INTO "+m.table+" (id, balance) VALUES ($1, $2) ON CONFLICT (id) DO UPDATE SET balance = excluded.balance", a.ID, a.Balance)
}

func (m mapper) update(ctx context.Context, a account) error {
	return m.exec(ctx, "UPDATE "+m.table+" SET balance = $2 WHERE id = $1", a.ID, a.Balance)
}

func (m mapper) remove(ctx context.Context, a account) error {
	return m.exec(ctx, "DELETE FROM "+m.table+" WHERE id = $1", a.ID)
}

func (m mapper) find(ctx context.Context, id int) (a account, err error) {
	err = m.db.QueryRowContext(ctx, "SELECT id, balance FROM "+m.table+" WHERE id = $1", id).Scan(&a.ID, &a.Balance)
	return a, err
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

	calls := map[string]func(mapper) error{
		"create": func(m mapper) error { return m.create(ctx, account{3, 0}) },
		"save":   func(m mapper) error { return m.save(ctx, account{1, 11}) },
		"update": func(m mapper) error { return m.update(ctx, account{1, 12}) },
		"remove": func(m mapper) error { return m.remove(ctx, account{2, 0}) },
	}
	// inTx runs the call in a transaction of its own, after begin, and commits.
	inTx := func(begin func(*sql.Tx) error, do func(mapper) error) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback() }() // after the commit it does nothing
		if err := begin(tx); err != nil {
			return err
		}
		if err := do(mapper{table, tx}); err != nil {
			return fencing.Explain(err)
		}
		return fencing.Explain(tx.Commit())
	}
	nothing := func(*sql.Tx) error { return nil }
	for name, call := range calls {
		want(t, name+" by itself", fencing.Explain(call(mapper{table, db})), fencing.ErrUnfenced)
		want(t, name+" in a transaction without a grant", inTx(nothing, call), fencing.ErrUnfenced)
	}
	g.holds(table, "(1,10,) (2,10,)")
	if a, err := (mapper{table, db}).find(ctx, 1); err != nil || a != (account{1, 10}) {
		t.Errorf("reading: %v, %v", a, err)
	}

	early, late := g.grant("early", time.Minute), g.grant("late", time.Minute)
	bind := func(f fencing.Fence) func(*sql.Tx) error {
		return func(tx *sql.Tx) error { return fencing.Bind(ctx, sqltx.Wrap(tx), f) }
	}
	for _, name := range []string{"create", "save", "update", "remove"} {
		want(t, name+" with a grant", inTx(bind(late), calls[name]), nil)
	}
	g.holds(table, "(1,12,%[1]d) (3,0,%[1]d)", late.Token)
	for _, name := range []string{"save", "update"} {
		err := inTx(bind(early), calls[name])
		var stale *fencing.StaleError
		if !errors.As(err, &stale) || stale.Current != late.Token {
			t.Errorf("%s with an earlier grant: %v", name, err)
		}
	}
	next := g.grant("late", time.Minute)
	want(t, "a grant that was taken over", inTx(bind(late), calls["update"]), fencing.ErrStale)
	want(t, "the next one", inTx(bind(next), calls["update"]), nil)
	g.holds(table, "(1,12,%d) (3,0,%d)", next.Token, late.Token)
}
