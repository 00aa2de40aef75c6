package adapters_test

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jmoiron/sqlx"

	"github.com/pglock/pglock-go/pglock/rowlock"
	"github.com/pglock/pglock-go/pglock/sqltx"
)

// accounts is the table for package rowlock.
var accounts = rowlock.Table{Name: pgx.Identifier{"accounts"}, Key: "id"}

func withdrawSqlx(ctx context.Context, db *sqlx.DB, guard guard, id string, amount int) error {
	tx, err := db.BeginTxx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // after the commit it does nothing
	if err := guard(ctx, sqltx.Wrap(tx)); err != nil {
		return err
	}
	if _, err := rowlock.Lock(ctx, sqltx.Wrap(tx), accounts, []string{id}, rowlock.ForNoKeyUpdate); err != nil {
		return err
	}
	var balance int
	if err := tx.GetContext(ctx, &balance, "SELECT balance FROM accounts WHERE id = $1", id); err != nil {
		return err
	}
	if _, err := tx.NamedExecContext(ctx, "UPDATE accounts SET balance = :balance WHERE id = :id",
		map[string]any{"id": id, "balance": balance - amount}); err != nil {
		return err
	}
	return tx.Commit()
}
