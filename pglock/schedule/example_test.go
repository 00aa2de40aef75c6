package schedule_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/schedule"
)

// Every process has the same job. Each tick runs in one of them.
func ExampleJob_Every() {
	client, stop := locktest.ExampleClient() // see pglock.Open
	defer stop()
	ctx, cancel := context.WithCancel(context.Background())

	job, err := schedule.New(client, "report") // failures are logged by slog.Default()
	if err != nil {
		log.Fatal(err)
	}
	err = job.Every(ctx, 100*time.Millisecond, func(context.Context, *pglock.Lease) error {
		fmt.Println("report")
		cancel() // ends the example after one tick
		return nil
	})
	fmt.Println(err)
	// Output:
	// report
	// context canceled
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

// A guarded write is made once, even if a runner was paused until after its lease expired.
func ExampleJob_Once_guard() {
	var job *schedule.Job
	var pool *pgxpool.Pool
	ctx := context.Background()

	noon := time.Date(2024, 11, 21, 12, 0, 0, 0, time.UTC)
	err := job.Once(ctx, noon, func(ctx context.Context, l *pglock.Lease) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if err := l.Guard(ctx, tx); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, "INSERT INTO payouts (due) VALUES ($1) ON CONFLICT DO NOTHING", noon)
			return err
		})
	})
	if errors.Is(err, schedule.ErrDone) {
		log.Print("another process ran the tick")
	}
}
