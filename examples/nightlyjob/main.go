// Nightlyjob measures the database once per night, however many replicas run.
//
//	DATABASE_URL=postgres://localhost/shop go run ./nightlyjob -at 03:00 -zone Europe/Berlin
//
// Each of two replicas sleeps until the time of day, then one of them writes the report and the other one
// finds it written. If the first one dies at work, the other one writes the report as soon as the lease has
// expired, and the guard refuses what the first one may still write later.
package main

import (
	"context"
	"errors"
	"flag"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/migrations"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/schedule"
)

const table = `CREATE TABLE IF NOT EXISTS nightly_reports (night timestamptz PRIMARY KEY, bytes bigint NOT NULL, writer text NOT NULL)`

func main() {
	at := flag.String("at", "03:00", "time of day, the same for all replicas")
	zone := flag.String("zone", "UTC", "its time zone, like Europe/Berlin, also the same for all")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *at, *zone); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, at, zone string) error {
	loc, err := time.LoadLocation(zone)
	if err != nil {
		return err
	}
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
	err = client.Do(ctx, "tables of nightlyjob", func(ctx context.Context, _ *pglock.Lease) error {
		_, err := pool.Exec(ctx, table) // not by two replicas at once: IF NOT EXISTS does not exclude them
		return err
	})
	if err != nil {
		return err
	}
	log.Printf("ready: the report is written at %s %s", at, zone)
	return nightly(ctx, client, schedule.Daily(at, loc), report(pool))
}

// nightly runs fn once per night among all replicas until ctx ends, and then returns nil. A run that fails is
// logged, and repeated three times at most, by whichever replica is alive.
func nightly(ctx context.Context, client *pglock.Client, s schedule.Schedule, fn schedule.Func) error {
	job, err := schedule.New(client, "nightly-report", schedule.WithRetry(3, time.Minute))
	if err != nil {
		return err
	}
	if err := job.Run(ctx, s, fn); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil // the signal, and another replica takes over the run that it has ended
}

// report writes the report of the night that its context carries. A successor may write it again after a
// replica has died, so it replaces the row, and only the current holder of the lock may do that.
func report(pool *pgxpool.Pool) schedule.Func {
	return func(ctx context.Context, l *pglock.Lease) error {
		night, ok := schedule.TickFromContext(ctx)
		if !ok {
			return errors.New("nightlyjob: the report runs only as a job")
		}
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if err := l.Guard(ctx, tx); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, `INSERT INTO nightly_reports VALUES ($1, pg_database_size(current_database()), $2)
				ON CONFLICT (night) DO UPDATE SET bytes = excluded.bytes, writer = excluded.writer`, night, l.Holder())
			return err
		})
	}
}
