package gocronlock_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/schedule"
	"github.com/pglock/pglock-go/pglock/schedule/gocronlock"
)

// Each scheduler makes a task and passes it to gocron.NewTask. Scheduler B is paused for a minute, so
// that gocron calls its task late: it finds the tick done.
func ExampleTask() {
	client, stop := locktest.ExampleClient() // see pglock.Open
	defer stop()
	ctx := context.Background()
	due := time.Date(2024, 11, 21, 12, 0, 0, 0, time.UTC)

	for _, scheduler := range []struct {
		name string
		late time.Duration
	}{{"A", 0}, {"B", time.Minute}} {
		job, err := schedule.New(client, "report", schedule.WithClock(func() time.Time { return due.Add(scheduler.late) }))
		if err != nil {
			log.Fatal(err)
		}
		task, err := gocronlock.Task(job, schedule.Every(time.Hour), func(context.Context, *pglock.Lease) error {
			fmt.Println("scheduler", scheduler.name, "makes the report")
			return nil
		})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(scheduler.name, task(ctx)) // gocron calls it
	}
	// Output:
	// scheduler A makes the report
	// A <nil>
	// B <nil>
}
