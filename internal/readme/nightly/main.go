// Nightly is the program of the tutorial "A nightly job on three replicas".
package main

import (
	"context"
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

func main() {
	name := flag.String("name", "A", "the name of this replica")
	every := flag.Duration("every", 0, "run so often instead of every night")
	work := flag.Duration("work", 0, "how long a run takes")
	flag.Parse()
	log.SetPrefix(*name + ": ")
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *name, *every, *work); err != nil && ctx.Err() == nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, name string, every, work time.Duration) error {
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := migrations.Up(ctx, pool); err != nil {
		return err
	}
	client, err := pglock.Open(ctx, pool, pglock.WithHolder(name))
	if err != nil {
		return err
	}
	defer client.Close(context.WithoutCancel(ctx))

	job, err := schedule.New(client, "nightly-report", schedule.WithTTL(5*time.Second))
	if err != nil {
		return err
	}
	ticks := schedule.Daily("03:00", time.UTC)
	if every > 0 {
		ticks = schedule.Every(every)
	}
	log.Print("is ready")
	return job.Run(ctx, ticks, func(ctx context.Context, l *pglock.Lease) error {
		tick, _ := schedule.TickFromContext(ctx)
		log.Print("makes the report of ", tick.Format(time.TimeOnly))
		select {
		case <-time.After(work): // stands for the work
		case <-ctx.Done(): // the signal, or the lease was lost
			return ctx.Err()
		}
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if err := l.Guard(ctx, tx); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, "INSERT INTO reports VALUES ($1, $2)", tick, name)
			return err
		})
	})
}
