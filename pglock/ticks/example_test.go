package ticks_test

import (
	"context"
	"errors"
	"log"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/ticks"
)

func report(context.Context) error { return nil }

// The job runs at every full minute, on one machine of all that run this.
func ExampleJob_Every() {
	var client *pglock.Client
	ctx := context.Background()

	job, err := ticks.New(client, "minutely-report", ticks.WithReport(func(tick time.Time, err error) {
		if err != nil && !errors.Is(err, ticks.ErrDone) {
			log.Printf("%v: %v", tick, err)
		}
	}))
	if err != nil {
		log.Fatal(err)
	}
	err = job.Every(ctx, time.Minute, func(ctx context.Context, _ *pglock.Lease) error {
		return report(ctx) // ctx is done when the lease is lost
	})
	log.Print(err) // why ctx ended
}

// A scheduler of one's own knows which tick it is. What it writes is written once, also if the runner
// was paused past its lease.
func ExampleJob_Once() {
	var job *ticks.Job
	var pool *pgxpool.Pool
	ctx := context.Background()

	noon := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	err := job.Once(ctx, noon, func(ctx context.Context, l *pglock.Lease) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if err := l.Guard(ctx, tx); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, "INSERT INTO payouts (due) VALUES ($1) ON CONFLICT DO NOTHING", noon)
			return err
		})
	})
	if errors.Is(err, ticks.ErrDone) {
		log.Print("another machine has done it")
	}
}
