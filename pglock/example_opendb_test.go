package pglock_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/migrations"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/sqltx"
)

// A program that has only a *sql.DB gets the whole client. The guard works in its transactions.
func ExampleOpenDB() {
	pool, drop := locktest.ExamplePool("CREATE TABLE accounts (id text, balance int)", "INSERT INTO accounts VALUES ('17', 100)")
	defer drop()
	ctx := context.Background()

	db, err := sql.Open("pgx", pool.Config().ConnString())
	if err != nil {
		log.Panic(err)
	}
	defer db.Close()
	if err := migrations.UpDB(ctx, db); err != nil {
		log.Panic(err)
	}
	client, err := pglock.OpenDB(ctx, db)
	if err != nil {
		log.Panic(err)
	}
	defer client.Close(ctx)

	err = client.Do(ctx, "account:17", func(ctx context.Context, l *pglock.Lease) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback() //nolint:errcheck // after the commit it does nothing
		if err := l.Guard(ctx, sqltx.Wrap(tx)); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, "UPDATE accounts SET balance = balance - 30 WHERE id = '17'"); err != nil {
			return err
		}
		return tx.Commit()
	})
	if err != nil {
		log.Panic(err)
	}
	var balance int
	if err := db.QueryRowContext(ctx, "SELECT balance FROM accounts").Scan(&balance); err != nil {
		log.Panic(err)
	}
	fmt.Println("left:", balance)
	// Output: left: 70
}
