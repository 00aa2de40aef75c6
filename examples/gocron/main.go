// Gocron makes a nightly backup with the scheduler gocron, once among all replicas.
//
//	DATABASE_URL=postgres://localhost/shop go run ./gocron
//
// The scheduler of each of two replicas looks every five minutes whether the backup of the night is due. One of
// them makes it, and the others find it made. A backup that could not begin, or whose replica has died, is made
// at the next look.
package main

import (
	"context"
	"errors"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/migrations"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/schedule"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) error {
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := migrations.Up(ctx, pool); err != nil {
		return err
	}
	client, err := pglock.Open(ctx, pool)
	if err != nil {
		return err
	}
	defer client.Close(ctx)
	scheduler, err := newScheduler(client, func(ctx context.Context, l *pglock.Lease) error {
		night, _ := schedule.TickFromContext(ctx)
		log.Printf("backup of %s, with token %d", night.Format(time.DateOnly), l.Token())
		return nil
	})
	if err != nil {
		return err
	}
	scheduler.Start()
	log.Print("ready: looks every five minutes")
	<-ctx.Done()
	return scheduler.Shutdown() // ends the context of a backup that runs, and waits for it
}

// newScheduler returns a scheduler that runs fn at 03:00 UTC. If no replica has ever run it, the first look runs
// that of the last night.
func newScheduler(client *pglock.Client, fn schedule.Func) (gocron.Scheduler, error) {
	job, err := schedule.New(client, "nightly-backup")
	if err != nil {
		return nil, err
	}
	night := schedule.Daily("03:00", time.UTC)
	look := func(ctx context.Context) error {
		if err := job.RunDue(ctx, night, fn); !schedule.Done(err) {
			return err // nil, or a failure that the job has logged
		}
		return nil // another replica runs it, or has run it
	}
	scheduler, err := gocron.NewScheduler(gocron.WithLocation(time.UTC), gocron.WithStopTimeout(time.Minute))
	if err != nil {
		return nil, err
	}
	_, err = scheduler.NewJob(gocron.CronJob("*/5 * * * *", false), gocron.NewTask(look),
		gocron.WithSingletonMode(gocron.LimitModeReschedule)) // no second look while a backup runs
	if err != nil {
		return nil, errors.Join(err, scheduler.Shutdown())
	}
	return scheduler, nil
}
