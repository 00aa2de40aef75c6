package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/pglock"
)

// Kubernetes sends TERM and kills the container after terminationGracePeriodSeconds. The signal
// ends the work's context. Do returns when the work has stopped, and releases the lock, so that
// another replica continues at once and not after the TTL. Close comes last.
func Example_gracefulShutdown() {
	pool, end := locktest.ExamplePool() // creates a database
	defer end()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	client, err := pglock.Open(ctx, pool)
	if err != nil {
		log.Fatal(err)
	}

	err = client.Do(ctx, "mailer", func(ctx context.Context, _ *pglock.Lease) error {
		for n := 1; ; n++ {
			if n == 3 {
				stop() // stands for the signal: both end ctx
			}
			select {
			case <-ctx.Done(): // the signal, or the lease was lost
				fmt.Println("stopped before mail", n)
				return ctx.Err()
			case <-time.After(time.Millisecond):
				fmt.Println("mail", n)
			}
		}
	})
	if err != nil && !errors.Is(err, context.Canceled) {
		log.Print(err)
	}
	info, err := client.Get(context.WithoutCancel(ctx), "mailer")
	fmt.Println("held:", info.Held(), err)

	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second) // less than the grace period
	defer cancel()
	if err := client.Close(closing); err != nil {
		log.Print(err)
	}
	// Output:
	// mail 1
	// mail 2
	// stopped before mail 3
	// held: false <nil>
}
