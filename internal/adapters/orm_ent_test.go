package adapters_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"entgo.io/ent/dialect"
	entsql "entgo.io/ent/dialect/sql"

	"github.com/pglock/pglock-go/internal/adapters/entstore"
	"github.com/pglock/pglock-go/internal/adapters/entstore/account"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/sqltx"
)

func withdrawEnt(ctx context.Context, client *entstore.Client, guard guard, id string, amount int) error {
	tx, err := client.Tx(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback()                                //nolint:errcheck // after the commit it does nothing
	if err := guard(ctx, sqltx.Wrap(tx)); err != nil { // ent's feature sql/execquery
		return err
	}
	a, err := tx.Account.Query().Where(account.ID(id)).ForUpdate().Only(ctx) // ent's feature sql/lock
	if err != nil {
		return err
	}
	if err := tx.Account.UpdateOne(a).SetBalance(a.Balance - amount).Exec(ctx); err != nil {
		return err
	}
	return tx.Commit()
}

func openEnt(db *sql.DB) *entstore.Client {
	return entstore.NewClient(entstore.Driver(entsql.OpenDB(dialect.Postgres, db)))
}

// A lease guards a transaction of ent, which also locks the row that it changes. The code is
// generated with the features sql/execquery and sql/lock.
func Example_ent() {
	ctx := context.Background()
	db, client, end := bank(ctx)
	defer end()
	orm := openEnt(db)

	err := client.Do(ctx, "account:17", func(ctx context.Context, l *pglock.Lease) error {
		return withdrawEnt(ctx, orm, l.Guard, "17", 30)
	})
	fmt.Println("left:", balance(ctx, db), err)

	stale, _ := overtaken(ctx, client, db) // a holder that was paused for too long
	err = withdrawEnt(ctx, orm, stale.Guard, "17", 30)
	fmt.Println("left:", balance(ctx, db), "stale:", errors.Is(err, pglock.ErrStale))
	// Output:
	// left: 70 <nil>
	// left: 70 stale: true
}
