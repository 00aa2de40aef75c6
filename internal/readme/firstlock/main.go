// Firstlock is the program of the tutorial "Your first lock".
package main

import (
	"context"
	"flag"
	"log"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/migrations"
	"github.com/pglock/pglock-go/pglock"
)

func main() {
	name := flag.String("name", "A", "the name of this worker")
	think := flag.Duration("think", 0, "how long it thinks between reading and writing")
	flag.Parse()
	log.SetPrefix(*name + ": ")
	if err := run(context.Background(), *name, *think); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, name string, think time.Duration) error {
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := migrations.Up(ctx, pool); err != nil {
		return err
	}
	client, err := pglock.Open(ctx, pool, pglock.WithTTL(5*time.Second), pglock.WithHolder(name))
	if err != nil {
		return err
	}
	defer client.Close(ctx)

	log.Print("waits for the lock")
	return client.Do(ctx, "account:17", func(ctx context.Context, l *pglock.Lease) error {
		var balance int
		if err := pool.QueryRow(ctx, "SELECT balance FROM accounts WHERE id = 17").Scan(&balance); err != nil {
			return err
		}
		log.Printf("holds the lock with token %d, and read the balance %d", l.Token(), balance)
		<-time.After(think) // stands for the call of another system
		return withdraw(context.WithoutCancel(ctx), pool, l, balance-10)
	})
}

// withdraw writes the new balance, unless another worker holds the lock by now.
func withdraw(ctx context.Context, pool *pgxpool.Pool, l *pglock.Lease, balance int) error {
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if err := l.Guard(ctx, tx); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, "UPDATE accounts SET balance = $1 WHERE id = 17", balance)
		return err
	})
	if err == nil { // it has committed
		log.Printf("wrote the balance %d", balance)
	}
	return err
}
