package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/pglock"
)

// A tenant may run two exports at a time, and all tenants together three.
func ExampleClient_All_limits() {
	pool, end := locktest.ExamplePool() // creates a database
	defer end()
	ctx := context.Background()
	client, err := pglock.Open(ctx, pool)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close(ctx)

	export := func(tenant string, run func(ctx context.Context, l *pglock.Lease) error) error {
		return client.All(client.Semaphore("exports:"+tenant, 2), client.Semaphore("exports", 3)).TryDo(ctx, run)
	}
	var start func(tenants ...string) // one after the other, each while those before export
	start = func(tenants ...string) {
		if len(tenants) == 0 {
			return
		}
		err := export(tenants[0], func(context.Context, *pglock.Lease) error {
			fmt.Printf("%s: exports\n", tenants[0])
			start(tenants[1:]...)
			return nil
		})
		var busy *pglock.BusyError
		if errors.As(err, &busy) {
			fmt.Printf("%s: no permit of %s is free\n", tenants[0], busy.Name)
			start(tenants[1:]...)
		} else if err != nil {
			log.Fatal(err)
		}
	}
	start("red", "red", "red", "blue", "blue")
	// Output:
	// red: exports
	// red: exports
	// red: no permit of exports:red is free
	// blue: exports
	// blue: no permit of exports is free
}
