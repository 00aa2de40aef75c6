package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/migrations"
	"github.com/pglock/pglock-go/pglock"
)

// A service creates the tables when it starts, and opens one client.
func Example() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	if err := migrations.Up(ctx, pool); err != nil {
		log.Fatal(err)
	}
	client, err := pglock.Open(ctx, pool)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close(ctx)

	err = client.Do(ctx, "nightly-report", func(ctx context.Context, l *pglock.Lease) error {
		fmt.Println("only here, with token", l.Token())
		return ctx.Err() // ctx is done if the lease is lost
	})
	if err != nil {
		log.Print(err)
	}
}

// Exactly one host runs the job; the others find it taken and go on.
func ExampleClient_TryAcquire() {
	var client *pglock.Client
	ctx := context.Background()

	l, err := client.TryAcquire(ctx, "hourly-cleanup", pglock.WithTTL(time.Minute))
	var busy *pglock.BusyError
	if errors.As(err, &busy) {
		fmt.Printf("%s does it\n", busy.Holder)
		return
	}
	if err != nil {
		log.Fatal(err)
	}
	defer func() {
		if err := l.Release(ctx); err != nil {
			log.Print(err)
		}
	}()
}

// The write is refused if somebody else holds the lock by then.
func ExampleLease_guard() {
	var pool *pgxpool.Pool
	var l *pglock.Lease
	ctx := context.Background()

	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if err := l.Guard(ctx, tx); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, "UPDATE discounts SET used = true WHERE id = $1", 17)
		return err
	})
	if errors.Is(err, pglock.ErrStale) || errors.Is(err, pglock.ErrLost) {
		log.Print("paused for too long: nothing was written")
	}
}
