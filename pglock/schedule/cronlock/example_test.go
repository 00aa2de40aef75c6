package cronlock_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/schedule"
	"github.com/pglock/pglock-go/pglock/schedule/cronlock"
)

// hourly has the method of a cron.Schedule.
type hourly struct{}

func (hourly) Next(t time.Time) time.Time { return t.Truncate(time.Hour).Add(time.Hour) }

// Each scheduler of the fleet makes the same function and passes it to cron.FuncJob. For each tick,
// one of these functions calls report.
func ExampleFunc() {
	client, stop := locktest.ExampleClient() // see pglock.Open
	defer stop()
	ctx := context.Background()
	now := time.Date(2024, 11, 21, 11, 59, 0, 0, time.UTC)
	clock := func() time.Time { return now }

	var schedulers []func()
	for _, name := range []string{"A", "B"} {
		job, err := schedule.New(client, "report", schedule.WithClock(clock))
		if err != nil {
			log.Fatal(err)
		}
		// With cron, hourly{} is cron.ParseStandard("0 * * * *").
		run, err := cronlock.Func(ctx, job, hourly{}, func(context.Context, *pglock.Lease) error {
			fmt.Println(now.Format(time.TimeOnly), "runs on", name)
			return nil
		})
		if err != nil {
			log.Fatal(err)
		}
		schedulers = append(schedulers, run)
	}
	for range 2 {
		now = now.Add(time.Hour)
		for _, run := range schedulers {
			run() // cron calls it at each tick
		}
	}
	// Output:
	// 12:59:00 runs on A
	// 13:59:00 runs on A
}
