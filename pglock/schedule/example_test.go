package schedule_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/schedule"
)

// Every replica of a service runs the same loop. Each night, one of them makes the report.
func ExampleJob_Run() {
	client, stop := locktest.ExampleClient() // see pglock.Open
	defer stop()
	ctx, cancel := context.WithCancel(context.Background())

	job, err := schedule.New(client, "nightly-report", // failures are logged by slog.Default()
		schedule.WithClock(almostThree())) // only for this example
	if err != nil {
		log.Fatal(err)
	}
	err = job.Run(ctx, schedule.Daily("03:00", time.UTC), func(context.Context, *pglock.Lease) error {
		fmt.Println("report")
		cancel() // ends the example after one night
		return nil
	})
	fmt.Println(err)
	// Output:
	// report
	// context canceled
}

// A run that fails is repeated, by another replica if one waits.
func ExampleWithRetry() {
	client, stop := locktest.ExampleClient() // see pglock.Open
	defer stop()

	job, err := schedule.New(client, "nightly-report", schedule.WithRetry(3, time.Minute))
	if err != nil {
		log.Fatal(err)
	}
	err = job.RunDue(context.Background(), schedule.Daily("03:00", time.UTC), func(context.Context, *pglock.Lease) error {
		fmt.Println("report")
		return nil
	})
	fmt.Println(err)
	// Output:
	// report
	// <nil>
}

// almostThree returns a clock that begins a tenth of a second before three at night.
func almostThree() func() time.Time {
	ahead := time.Until(time.Date(2024, 11, 21, 2, 59, 59, 900_000_000, time.UTC))
	return func() time.Time { return time.Now().Add(ahead) }
}

// Three replicas have a timer of their own, such as a crontab, that fires at three at night. Their
// clocks differ. In two nights, the report is made twice.
func ExampleJob_RunDue() {
	client, stop := locktest.ExampleClient() // see pglock.Open
	defer stop()
	ctx := context.Background()
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		log.Fatal(err)
	}
	nightly := schedule.Daily("03:00", berlin)

	for night := 21; night <= 22; night++ {
		var made, found atomic.Int32
		var replicas sync.WaitGroup
		for _, ahead := range []time.Duration{-2 * time.Second, 0, 5 * time.Second} {
			clock := time.Date(2024, 11, night, 3, 0, 1, 0, berlin).Add(ahead)
			job, err := schedule.New(client, "nightly-report", schedule.WithClock(func() time.Time { return clock }))
			if err != nil {
				log.Fatal(err)
			}
			replicas.Go(func() {
				err := job.RunDue(ctx, nightly, func(context.Context, *pglock.Lease) error {
					made.Add(1)
					return nil
				})
				if errors.Is(err, schedule.ErrDone) {
					found.Add(1)
				}
			})
		}
		replicas.Wait()
		fmt.Printf("November %d: %d replica made the report, %d found it made\n", night, made.Load(), found.Load())
	}
	// Output:
	// November 21: 1 replica made the report, 2 found it made
	// November 22: 1 replica made the report, 2 found it made
}

// A cleanup that may start at any time, and that one start in six hours is enough for.
func ExampleJob_OncePer() {
	client, stop := locktest.ExampleClient() // see pglock.Open
	defer stop()
	ctx := context.Background()

	job, err := schedule.New(client, "cleanup")
	if err != nil {
		log.Fatal(err)
	}
	for range 3 {
		err := job.OncePer(ctx, 6*time.Hour, func(context.Context, *pglock.Lease) error {
			fmt.Println("cleanup")
			return nil
		})
		if errors.Is(err, schedule.ErrDone) {
			fmt.Println("nothing to do")
		} else if err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// cleanup
	// nothing to do
	// nothing to do
}

// A scheduler of your own calls Once with the tick. A second process finds the tick done.
func ExampleJob_Once() {
	client, stop := locktest.ExampleClient() // see pglock.Open
	defer stop()
	ctx := context.Background()

	noon := time.Date(2024, 11, 21, 12, 0, 0, 0, time.UTC)
	for _, process := range []string{"A", "B"} {
		job, err := schedule.New(client, "payouts")
		if err != nil {
			log.Fatal(err)
		}
		err = job.Once(ctx, noon, func(context.Context, *pglock.Lease) error {
			fmt.Println(process, "runs the tick")
			return nil
		})
		if errors.Is(err, schedule.ErrDone) {
			fmt.Println(process, "has nothing to do")
		} else if err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// A runs the tick
	// B has nothing to do
}
