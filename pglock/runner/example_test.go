package runner_test

import (
	"context"
	"errors"
	"log"
	"os/exec"
	"time"

	"github.com/golang-migrate/migrate/v4"
	"github.com/golang-migrate/migrate/v4/database"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/runner"
)

// golang-migrate under a lock that does not block CREATE INDEX CONCURRENTLY.
func ExampleWrap() {
	var driver database.Driver // golang-migrate's, for pgx or lib/pq
	var pool *pgxpool.Pool
	ctx := context.Background()

	guarded, err := runner.Wrap(ctx, driver, pool, runner.WithTimeout(time.Minute))
	if err != nil {
		log.Fatal(err)
	}
	m, err := migrate.NewWithDatabaseInstance("file://migrations", "pgx5", guarded)
	if err != nil {
		log.Fatal(err)
	}
	m.LockTimeout = 2 * time.Minute // longer than WithTimeout, whose error says more
	if err := m.Up(); err != nil && !errors.Is(err, migrate.ErrNoChange) {
		log.Fatal(err)
	}
}

// Any other tool: a function of a library, or a program that is killed when the lease is lost.
func ExampleGuard() {
	var client *pglock.Client
	ctx := context.Background()

	err := runner.Guard(ctx, client, "migrations", func(ctx context.Context) error {
		return exec.CommandContext(ctx, "atlas", "migrate", "apply").Run()
	}, runner.WithTimeout(10*time.Minute))
	if err != nil {
		log.Fatal(err)
	}
}
