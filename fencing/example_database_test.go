package fencing_test

import (
	"context"
	"log"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/pglock"
)

// exampleDatabase returns a pool on a new database with the lock tables, after it has run the
// statements.
func exampleDatabase(statements ...string) (pool *pgxpool.Pool, client *pglock.Client, done func()) {
	ctx := context.Background()
	pool, stop := locktest.ExamplePool(statements...)
	client, err := pglock.Open(ctx, pool)
	if err != nil {
		log.Fatal(err)
	}
	return pool, client, func() {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		_ = client.Close(ctx) // some of its leases are lost
		stop()
	}
}

// overtake grants the lease's lock to another holder.
func overtake(ctx context.Context, client *pglock.Client, l *pglock.Lease) *pglock.Lease {
	if err := l.Release(ctx); err != nil {
		log.Fatal(err)
	}
	next, err := client.Acquire(ctx, l.Name())
	if err != nil {
		log.Fatal(err)
	}
	return next
}
