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

func main() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	if err := migrations.Up(ctx, pool); err != nil { // creates schema "pglock"; all replicas may call it at once
		log.Fatal(err)
	}
	client, err := pglock.Open(ctx, pool) // one per process
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close(ctx)

	// Do waits for the lock, runs the function, and releases the lock. ctx is done if the lease is lost.
	err = client.Do(ctx, "account:17", func(ctx context.Context, l *pglock.Lease) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if err := l.Guard(ctx, tx); err != nil {
				return err // another holder has the lock: this one was paused for too long
			}
			_, err := tx.Exec(ctx, "UPDATE accounts SET balance = balance - 10 WHERE id = 17")
			return err
		})
	})
	if err != nil {
		log.Print(err)
	}
}
