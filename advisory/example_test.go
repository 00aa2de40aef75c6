package advisory_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/internal/testserver"
)

// connect opens a pool for an example.
func connect(ctx context.Context) *pgxpool.Pool {
	server, err := testserver.Get(ctx)
	if err != nil {
		log.Panic(err)
	}
	pool, err := pgxpool.New(ctx, server.URL)
	if err != nil {
		log.Panic(err)
	}
	return pool
}

// The commit ends the lock together with what was written under it.
func ExampleDo() {
	ctx := context.Background()
	pool := connect(ctx)
	defer pool.Close()

	err := advisory.Do(ctx, pool, advisory.NewKey("example accounts", "42"), func(ctx context.Context, tx pgx.Tx) error {
		var balance int
		// It sees what the last holder has committed.
		err := tx.QueryRow(ctx, "SELECT 7").Scan(&balance)
		fmt.Println("alone with", balance)
		return err
	}, advisory.WithTimeout(5*time.Second))
	fmt.Println(err)
	// Output:
	// alone with 7
	// <nil>
}

// A lock in the caller's transaction. A wait that ends without the lock leaves the transaction
// usable.
func ExampleLock() {
	ctx := context.Background()
	pool := connect(ctx)
	defer pool.Close()
	key := advisory.NewKey("example invoices", "2024-17")

	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if err := advisory.Lock(ctx, tx, key); err != nil {
			return err
		}
		return pgx.BeginFunc(ctx, pool, func(other pgx.Tx) error {
			err := advisory.Lock(ctx, other, key, advisory.WithTimeout(20*time.Millisecond))
			fmt.Println("too late:", errors.Is(err, advisory.ErrTimeout))
			_, err = other.Exec(ctx, "SELECT 1")
			return err
		})
	})
	fmt.Println(err)
	// Output:
	// too late: true
	// <nil>
}

// A lock for work that is not one transaction. Its context is done when the lock is lost.
func ExampleAcquire() {
	ctx := context.Background()
	pool := connect(ctx)
	defer pool.Close()

	s, err := advisory.Acquire(ctx, pool, advisory.NewKey("example jobs", "reindex"), advisory.WithTimeout(10*time.Second))
	if err != nil {
		log.Panic(err) // errors.Is ErrPooled: behind a pooler in transaction mode, use a lease
	}
	work := func(ctx context.Context) error { return ctx.Err() }
	fmt.Println(work(s.Context())) // the context is done when the lock ends
	fmt.Println(s.Release(ctx))
	// Output:
	// <nil>
	// <nil>
}

// Inspect lists the sessions that hold a lock or wait for it.
func ExampleInspect() {
	ctx := context.Background()
	pool := connect(ctx)
	defer pool.Close()

	key := advisory.NewKey("example orders", "4711")
	err := advisory.Do(ctx, pool, key, func(ctx context.Context, _ pgx.Tx) error {
		all, err := advisory.Inspect(ctx, pool)
		for _, u := range all {
			if u.Key == key {
				fmt.Printf("%s/%s: held: %v, for longer than 0: %v, waits for: %v\n", u.Namespace, u.Name, u.Granted, u.TransactionAge > 0, u.WaitsFor)
			}
		}
		return err
	})
	fmt.Println(err)
	// Output:
	// example orders/4711: held: true, for longer than 0: true, waits for: []
	// <nil>
}
