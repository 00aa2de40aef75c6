package gocronlock_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/schedule/gocronlock"
)

// One scheduler is the leader and runs all jobs. Pass its elector to gocron.WithDistributedElector,
// and its task to gocron.NewTask.
func ExampleElector() {
	client, stop := locktest.ExampleClient() // see pglock.Open
	defer stop()
	ctx := context.Background()

	for _, scheduler := range []string{"A", "B"} {
		elector, err := gocronlock.NewElector(client, "leader", pglock.WithHolder(scheduler))
		if err != nil {
			log.Fatal(err)
		}
		task := elector.Task(func(context.Context, *pglock.Lease) error {
			fmt.Println(scheduler, "runs the job")
			return nil
		})
		err = task(ctx) // gocron calls it
		var busy *pglock.BusyError
		if errors.As(err, &busy) {
			fmt.Println(scheduler, "does not run the job: the leader is", busy.Holder)
		} else if err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// A runs the job
	// B does not run the job: the leader is A
}
