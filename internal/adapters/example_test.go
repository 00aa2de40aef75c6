package adapters_test

import (
	"context"
	"database/sql"
	"log"
	"os"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/pressly/goose/v3"
	"github.com/robfig/cron/v3"

	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/cronlock"
	"github.com/pglock/pglock-go/pglock/gocronlock"
	"github.com/pglock/pglock-go/pglock/gooselock"
	"github.com/pglock/pglock-go/pglock/ticks"
)

func report(context.Context, *pglock.Lease) error { return nil }

func must[T any](v T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return v
}

// Every scheduler of the fleet has this; one of them runs each tick.
func Example_gocron() {
	var client *pglock.Client

	locker := must(gocronlock.NewLocker[gocron.Lock](client, time.Minute))
	s := must(gocron.NewScheduler(gocron.WithDistributedLocker(locker)))
	must(s.NewJob(gocron.CronJob("*/5 * * * *", false), gocron.NewTask(locker.Task(report)), gocron.WithName("report")))
	s.Start()
}

// The same with robfig/cron.
func Example_cron() {
	var client *pglock.Client
	ctx := context.Background()

	schedule := must(cron.ParseStandard("*/5 * * * *"))
	job := must(ticks.New(client, "report", ticks.WithReport(func(tick time.Time, err error) {
		if err != nil && !cronlock.Done(err) {
			log.Printf("%v: %v", tick, err)
		}
	})))
	c := cron.New()
	c.Schedule(schedule, cron.FuncJob(must(cronlock.Func(ctx, job, schedule, report))))
	c.Start()
}

// goose on the connection that migrates.
func Example_goose() {
	var db *sql.DB
	ctx := context.Background()

	locker := must(gooselock.NewSessionLocker("migrations", gooselock.WithTimeout(10*time.Minute)))
	provider := must(goose.NewProvider(goose.DialectPostgres, db, os.DirFS("migrations"), goose.WithSessionLocker(locker)))
	must(provider.Up(ctx))
}

// goose under a lease, behind a pooler in transaction mode.
func Example_gooseBehindAPooler() {
	var db *sql.DB
	var client *pglock.Client
	ctx := context.Background()

	locker := must(gooselock.NewLocker(client, "migrations"))
	provider := must(goose.NewProvider(goose.DialectPostgres, db, os.DirFS("migrations"), goose.WithLocker(locker)))
	ctx, stop := locker.StopOnLoss(ctx)
	defer stop()
	must(provider.Up(ctx))
}
