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

	export := func(tenant string) error {
		_, err := client.All(client.Semaphore("exports:"+tenant, 2), client.Semaphore("exports", 3)).TryAcquire(ctx)
		return err // hold the lease while the export runs
	}
	for _, tenant := range []string{"red", "red", "red", "blue", "blue"} {
		var busy *pglock.BusyError
		if err := export(tenant); errors.As(err, &busy) {
			fmt.Printf("%s: no permit of %s is free\n", tenant, busy.Name)
		} else if err == nil {
			fmt.Printf("%s: exports\n", tenant)
		}
	}
	// Output:
	// red: exports
	// red: exports
	// red: no permit of exports:red is free
	// blue: exports
	// blue: no permit of exports is free
}
