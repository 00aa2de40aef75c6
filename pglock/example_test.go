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

	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/internal/locktest"
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

	err = client.Do(ctx, "account:17", func(ctx context.Context, l *pglock.Lease) error {
		fmt.Println("no other process is here, and the token is", l.Token())
		return ctx.Err() // ctx is done if the lease is lost
	})
	if err != nil {
		log.Print(err)
	}
}

// A lock that is held is a *BusyError with the facts.
func ExampleClient_TryAcquire() {
	client, stop := locktest.ExampleClient() // see pglock.Open
	defer stop()
	ctx := context.Background()

	for _, worker := range []string{"A", "B"} {
		_, err := client.TryAcquire(ctx, "cleanup", pglock.WithHolder(worker), pglock.WithTTL(time.Minute))
		var busy *pglock.BusyError
		switch {
		case errors.As(err, &busy):
			fmt.Printf("%s skips the clean-up: %s holds the lock\n", worker, busy.Holder)
		case err != nil:
			log.Fatal(err)
		default:
			fmt.Println(worker, "cleans up") // and then calls Release
		}
	}
	// Output:
	// A cleans up
	// B skips the clean-up: A holds the lock
}

// A function that locks for itself can be called by one that holds the lock already.
func ExampleWithJoin() {
	client, stop := locktest.ExampleClient() // see pglock.Open
	defer stop()

	post := func(ctx context.Context, text string) error {
		return client.Do(ctx, "ledger", func(context.Context, *pglock.Lease) error {
			fmt.Println(text, "under the lock")
			return nil
		}, pglock.WithJoin())
	}
	err := client.Do(context.Background(), "ledger", func(ctx context.Context, _ *pglock.Lease) error {
		if err := post(ctx, "debit"); err != nil {
			return err
		}
		return post(ctx, "credit")
	})
	if err != nil {
		log.Fatal(err)
	}
	err = post(context.Background(), "fee") // acquires the lock itself
	if err != nil {
		log.Fatal(err)
	}
	// Output:
	// debit under the lock
	// credit under the lock
	// fee under the lock
}

// Short work that is one transaction needs no lease.
func ExampleClient_DoTx() {
	client, stop := locktest.ExampleClient() // see pglock.Open
	defer stop()
	ctx := context.Background()

	err := client.DoTx(ctx, "discount:17", func(ctx context.Context, tx pgx.Tx) error {
		var sum int
		if err := tx.QueryRow(ctx, "SELECT 1 + 1").Scan(&sum); err != nil {
			return err
		}
		fmt.Println(sum)
		return nil
	}, advisory.WithTimeout(2*time.Second))
	if errors.Is(err, pglock.ErrTimeout) {
		log.Print("another transaction holds the lock")
	} else if err != nil {
		log.Fatal(err)
	}
	// Output: 2
}

// The guard refuses the write if another holder has the lock.
func ExampleLease_Guard() {
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
