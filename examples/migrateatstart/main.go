// Migrateatstart migrates its tables when it starts, and then serves.
//
//	DATABASE_URL=postgres://localhost/shop go run ./migrateatstart
//
// Of two replicas that start at once, one migrates. The other one waits, logs which replica it waits for, and
// then finds the tables migrated. If the first one dies, its migration is rolled back, and the other one
// migrates as soon as the lease has expired.
package main

import (
	"context"
	"embed"
	"fmt"
	"log"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/migrations"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/runner"
)

//go:embed migrations/*.sql
var files embed.FS // named as those of golang-migrate, whose command works with them too

// lockName is that of the migrations of this service. Services with tables of their own use other names.
const lockName = "migrations of migrateatstart"

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
	if err := migrations.Up(ctx, pool); err != nil { // the tables of the locks
		return err
	}
	client, err := pglock.Open(ctx, pool)
	if err != nil {
		return err
	}
	defer client.Close(ctx)
	if err := migrate(ctx, client, pool, 10*time.Minute); err != nil {
		return err // the platform starts the replica again
	}
	log.Print("ready: the tables are migrated")
	<-ctx.Done() // stands for a server
	return nil
}

// migrate brings the tables of the service to the version of this release. It waits as long as that for a
// replica that migrates. A replica of an older release, which can restart during a rollout, keeps the tables of
// a newer one.
func migrate(ctx context.Context, client *pglock.Client, pool *pgxpool.Pool, wait time.Duration) error {
	err := runner.Run(ctx, runner.Files(files, "migrations"), pool,
		runner.WithLease(client), // works behind a pooler too, and `pglock ls` lists it
		runner.WithName(lockName),
		runner.WithTimeout(wait),
		runner.WithLogger(slog.Default()),
		runner.AllowNewer())
	if err != nil {
		return fmt.Errorf("migrate: %w", err) // the error says what is left, and how to continue
	}
	return nil
}
