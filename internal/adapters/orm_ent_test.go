package adapters_test

import (
	"context"
	"database/sql"
	"errors"

	"entgo.io/ent/dialect"
	entsql "entgo.io/ent/dialect/sql"

	"github.com/pglock/pglock-go/pglock/sqltx"
)

// withdrawEnt uses ent's driver and its statement builders. A generated *ent.Tx with the features
// sql/execquery and sql/lock runs the same statements on the same transaction.
func withdrawEnt(ctx context.Context, driver *entsql.Driver, guard guard, id string, amount int) error {
	tx, err := beginEnt(ctx, driver)
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // after the commit it does nothing
	if err := guard(ctx, sqltx.Wrap(tx)); err != nil {
		return err
	}
	var rows entsql.Rows
	query, args := entsql.Dialect(dialect.Postgres).Select("balance").From(entsql.Table("accounts")).Where(entsql.EQ("id", id)).ForUpdate().Query()
	if err := tx.Query(ctx, query, args, &rows); err != nil {
		return err
	}
	balance, err := entsql.ScanInt(rows)
	if err := errors.Join(err, rows.Close()); err != nil {
		return err
	}
	query, args = entsql.Dialect(dialect.Postgres).Update("accounts").Set("balance", balance-amount).Where(entsql.EQ("id", id)).Query()
	if err := tx.Exec(ctx, query, args, nil); err != nil {
		return err
	}
	return tx.Commit()
}

func openEnt(db *sql.DB) *entsql.Driver { return entsql.OpenDB(dialect.Postgres, db) }

func beginEnt(ctx context.Context, driver *entsql.Driver) (*entsql.Tx, error) {
	tx, err := driver.Tx(ctx)
	if err != nil {
		return nil, err
	}
	return tx.(*entsql.Tx), nil
}
