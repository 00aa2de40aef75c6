// Quickstart is the first program of the README.
package main

import (
	"context"
	"log"
	"os"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/migrations"
	"github.com/pglock/pglock-go/pglock"
)

const accounts = `CREATE TABLE IF NOT EXISTS accounts (id int PRIMARY KEY, balance int NOT NULL);
	INSERT INTO accounts VALUES (17, 100) ON CONFLICT DO NOTHING`

func main() {
	if err := run(context.Background()); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) error {
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := migrations.Up(ctx, pool); err != nil { // creates schema "pglock"; all replicas may call it at once
		return err
	}
	client, err := pglock.Open(ctx, pool) // one per process
	if err != nil {
		return err
	}
	defer client.Close(ctx)

	var balance int
	err = client.Do(ctx, "account:17", func(ctx context.Context, l *pglock.Lease) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if err := l.Guard(ctx, tx); err != nil {
				return err
			}
			if _, err := tx.Exec(ctx, accounts); err != nil { // a migration of yours
				return err
			}
			return tx.QueryRow(ctx, "UPDATE accounts SET balance = balance - 10 WHERE id = 17 RETURNING balance").Scan(&balance)
		})
	})
	if err == nil {
		log.Print("the balance is ", balance)
	}
	return err
}
