package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/pglock"
)

// A replica skips the clean-up while another replica does it. WithWait waits for a limited time
// instead. Neither limits the work.
func ExampleClient_TryDo() {
	pool, end := locktest.ExamplePool() // creates a database
	defer end()
	ctx := context.Background()
	client, err := pglock.Open(ctx, pool)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close(ctx)
	cleanUp := func(context.Context, *pglock.Lease) error { fmt.Println("cleaning up"); return nil }

	try := func() {
		err := client.TryDo(ctx, "cleanup", cleanUp)
		var busy *pglock.BusyError
		if errors.As(err, &busy) {
			fmt.Println("skipped:", busy.Holder, "does it")
		} else if err != nil {
			log.Fatal(err)
		}
	}
	try()

	l, err := client.Acquire(ctx, "cleanup", pglock.WithHolder("replica B"))
	if err != nil {
		log.Fatal(err)
	}
	try()
	err = client.Do(ctx, "cleanup", cleanUp, pglock.WithWait(50*time.Millisecond))
	fmt.Println("not granted in time:", errors.Is(err, pglock.ErrNotAcquired))
	if err := l.Release(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// cleaning up
	// skipped: replica B does it
	// not granted in time: true
}
