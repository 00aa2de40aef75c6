package pglock_test

import (
	"context"
	"fmt"
	"log"
	"sync"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/pglock"
)

// Two transfers in opposite directions need the same two accounts. Neither holds one account while it
// waits for the other, so they can't deadlock.
func ExampleClient_All() {
	pool, end := locktest.ExamplePool() // creates a database
	defer end()
	ctx := context.Background()
	client, err := pglock.Open(ctx, pool)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close(ctx)

	balance := map[string]int{"account:1": 100, "account:2": 100}
	transfer := func(from, to string, amount int) error {
		return client.All(client.Lock(from), client.Lock(to)).Do(ctx, func(context.Context, *pglock.Lease) error {
			balance[from] -= amount // in a database: guard the transaction with the lease first
			balance[to] += amount
			return nil
		})
	}
	var transfers sync.WaitGroup
	transfers.Go(func() {
		if err := transfer("account:1", "account:2", 70); err != nil {
			log.Print(err)
		}
	})
	transfers.Go(func() {
		if err := transfer("account:2", "account:1", 20); err != nil {
			log.Print(err)
		}
	})
	transfers.Wait()
	fmt.Println(balance["account:1"], balance["account:2"])
	// Output: 50 150
}
