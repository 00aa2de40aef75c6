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

// A request starts a job and hands its lock over to a worker in another process. The fence goes with
// the job, as text. The worker renews and releases the lock from then on.
func ExampleClient_Adopt() {
	pool, end := locktest.ExamplePool() // creates a database
	defer end()
	ctx := context.Background()
	web, err := pglock.Open(ctx, pool, pglock.WithHolder("web"))
	if err != nil {
		log.Fatal(err)
	}
	defer web.Close(ctx)
	worker, err := pglock.Open(ctx, pool, pglock.WithHolder("worker")) // in another process
	if err != nil {
		log.Fatal(err)
	}
	defer worker.Close(ctx)

	// In the request: acquire the lock, check the input, and put the job into a queue.
	lease, err := web.TryAcquire(ctx, "export:17")
	if err != nil {
		log.Fatal(err)
	}
	fence, err := lease.HandOver()
	if err != nil {
		log.Fatal(err)
	}
	job, err := fence.MarshalText()
	if err != nil {
		log.Fatal(err)
	}

	// In the worker: go on with the same grant.
	var received pglock.Fence
	if err := received.UnmarshalText(job); err != nil {
		log.Fatal(err)
	}
	lease, err = worker.Adopt(ctx, received)
	if err != nil {
		log.Fatal(err) // ErrStale: the grant has expired, and another one may have the lock
	}
	var busy *pglock.BusyError
	if _, err := web.TryAcquire(ctx, "export:17"); errors.As(err, &busy) {
		fmt.Println("held by", busy.Holder, "with the token of the request:", busy.Token == fence.Token)
	}
	if err := lease.Release(ctx); err != nil {
		log.Fatal(err)
	}
	_, err = worker.Adopt(ctx, received)
	fmt.Println("adopted twice:", !errors.Is(err, pglock.ErrStale))
	// Output:
	// held by worker with the token of the request: true
	// adopted twice: false
}

// Two replicas start a job at the same time, by clocks that differ. The job takes a moment. Without
// WithMinHold the second replica would find the lock free again.
func ExampleWithMinHold() {
	pool, end := locktest.ExamplePool() // creates a database
	defer end()
	ctx := context.Background()
	client, err := pglock.Open(ctx, pool)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close(ctx)

	for _, replica := range []string{"first", "second"} {
		err := client.TryDo(ctx, "cleanup", func(context.Context, *pglock.Lease) error {
			fmt.Println("cleanup runs on the", replica, "replica")
			return nil
		}, pglock.WithMinHold(time.Minute))
		if errors.Is(err, pglock.ErrNotAcquired) {
			fmt.Println("the", replica, "replica has nothing to do")
		}
	}
	// Output:
	// cleanup runs on the first replica
	// the second replica has nothing to do
}
