package pglock_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/pglock"
)

// oldLocker has the methods of a redislock.Client that a program uses.
type oldLocker struct{}

func (oldLocker) Obtain(context.Context, string, time.Duration, any) (oldLock, error) {
	fmt.Println("the old lock is obtained")
	return oldLock{}, nil
}

type oldLock struct{}

func (oldLock) Release(context.Context) error { fmt.Println("the old lock is released"); return nil }

// A release of a program that moves from redislock acquires both locks, the old one first, so that
// it excludes the replicas of the release before. The next release has the new lock only.
func ExampleClient_Do_move() {
	pool, end := locktest.ExamplePool() // creates a database
	defer end()
	ctx := context.Background()
	client, err := pglock.Open(ctx, pool)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close(ctx)
	var locker oldLocker // redislock.New(rdb)
	ship := func(context.Context, *pglock.Lease) error { fmt.Println("the order is shipped"); return nil }

	shipOnce := func(ctx context.Context) error {
		old, err := locker.Obtain(ctx, "order:7", time.Minute, nil) // and refreshed, as before
		if err != nil {
			return err
		}
		defer old.Release(context.WithoutCancel(ctx)) //nolint:errcheck // it expires
		return client.Do(ctx, "order:7", ship)
	}
	if err := shipOnce(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// the old lock is obtained
	// the order is shipped
	// the old lock is released
}
