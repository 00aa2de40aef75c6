package runner_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os/exec"
	"sync"
	"testing/fstest"
	"time"

	"github.com/golang-migrate/migrate/v4"
	"github.com/golang-migrate/migrate/v4/database"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/runner"
)

// Four replicas of a service start at once, and each one migrates before it serves. One of them
// runs the files, and the others wait for it.
func ExampleRun() {
	ctx := context.Background()
	pool, end := locktest.ExamplePool("CREATE TABLE log (line text)") // creates a database
	defer end()
	files := fstest.MapFS{ // a service uses embed.FS
		"migrations/1_orders.up.sql": {Data: []byte("CREATE TABLE orders (id int); INSERT INTO log VALUES ('orders')")},
		"migrations/2_index.up.sql":  {Data: []byte("CREATE INDEX ON orders (id); INSERT INTO log VALUES ('index')")},
	}

	var replicas sync.WaitGroup
	for range 4 {
		replicas.Go(func() {
			if err := runner.Run(ctx, runner.Files(files, "migrations"), pool); err != nil {
				log.Fatal(err)
			}
		})
	}
	replicas.Wait()

	var lines []string
	if err := pool.QueryRow(ctx, "SELECT array_agg(line) FROM log").Scan(&lines); err != nil {
		log.Fatal(err)
	}
	fmt.Println(lines)
	// Output: [orders index]
}

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
