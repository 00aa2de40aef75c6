package adapters_test

import (
	"context"
	"database/sql"

	"github.com/pglock/pglock-go/internal/adapters/sqlcstore"
	"github.com/pglock/pglock-go/pglock/sqltx"
)

func withdrawSqlc(ctx context.Context, db *sql.DB, guard guard, id string, amount int32) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // after the commit it does nothing
	if err := guard(ctx, sqltx.Wrap(tx)); err != nil {
		return err
	}
	queries := sqlcstore.New(db).WithTx(tx)
	balance, err := queries.LockAccount(ctx, id) // SELECT ... FOR NO KEY UPDATE
	if err != nil {
		return err
	}
	if err := queries.SetBalance(ctx, sqlcstore.SetBalanceParams{ID: id, Balance: balance - amount}); err != nil {
		return err
	}
	return tx.Commit()
}
