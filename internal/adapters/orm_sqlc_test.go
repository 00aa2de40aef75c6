package adapters_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/pglock/pglock-go/internal/adapters/sqlcstore"
	"github.com/pglock/pglock-go/pglock"
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

// A lease guards a transaction with queries of sqlc, one of which locks the row.
func Example_sqlc() {
	ctx := context.Background()
	db, client, end := bank(ctx)
	defer end()

	err := client.Do(ctx, "account:17", func(ctx context.Context, l *pglock.Lease) error {
		return withdrawSqlc(ctx, db, l.Guard, "17", 30)
	})
	fmt.Println("left:", balance(ctx, db), err)

	stale, _ := overtaken(ctx, client, db) // a holder that was paused for too long
	err = withdrawSqlc(ctx, db, stale.Guard, "17", 30)
	fmt.Println("left:", balance(ctx, db), "stale:", errors.Is(err, pglock.ErrStale))
	// Output:
	// left: 70 <nil>
	// left: 70 stale: true
}
