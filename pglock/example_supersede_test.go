package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/pglock"
)

// The newest deployment wins. The one that runs is stopped, and one that waits would end with
// ErrSuperseded.
func ExampleWithSupersede() {
	pool, end := locktest.ExamplePool() // creates a database
	defer end()
	ctx := context.Background()
	client, err := pglock.Open(ctx, pool)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close(ctx)

	deploy := func(version string, rollOut func(ctx context.Context) error) {
		err := client.Do(ctx, "deploy:shop", func(ctx context.Context, _ *pglock.Lease) error {
			return rollOut(ctx) // ends when its context does
		}, pglock.WithSupersede())
		if errors.Is(err, pglock.ErrSuperseded) {
			fmt.Println(version, "is left to a newer deployment")
		} else if err != nil {
			log.Fatal(err)
		}
	}
	started, stopped := make(chan bool), make(chan bool)
	go func() {
		defer close(stopped)
		deploy("v1", func(ctx context.Context) error {
			close(started)
			<-ctx.Done()
			fmt.Println("v1 stops:", errors.Is(context.Cause(ctx), pglock.ErrSuperseded))
			return context.Cause(ctx)
		})
	}()
	<-started
	deploy("v2", func(context.Context) error {
		<-stopped
		fmt.Println("v2 is deployed")
		return nil
	})
	// Output:
	// v1 stops: true
	// v1 is left to a newer deployment
	// v2 is deployed
}
