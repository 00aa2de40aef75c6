package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/pglock"
)

// lead runs fn whenever this replica is the leader, until ctx is done.
func lead(ctx context.Context, client *pglock.Client, replica string, fn func(ctx context.Context, l *pglock.Lease) error) error {
	for {
		err := client.Do(ctx, "leader", fn, pglock.WithHolder(replica))
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil && !errors.Is(err, pglock.ErrLost) { // after a loss, another replica leads: wait again
			return err
		}
	}
}

// One replica is the leader. The others wait, and one of them takes over when it stops.
func Example_leader() {
	pool, end := locktest.ExamplePool() // creates a database
	defer end()
	client, err := pglock.Open(context.Background(), pool)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close(context.Background())

	for _, replica := range []string{"A", "B"} {
		ctx, shutdown := context.WithCancel(context.Background())
		err := lead(ctx, client, replica, func(ctx context.Context, l *pglock.Lease) error {
			fmt.Println(l.Holder(), "leads")
			shutdown() // ends the example's term
			<-ctx.Done()
			return ctx.Err()
		})
		fmt.Println(replica, "stops:", err)
	}
	// Output:
	// A leads
	// A stops: context canceled
	// B leads
	// B stops: context canceled
}
