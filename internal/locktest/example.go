package locktest

import (
	"context"
	"log"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/migrations"
	"github.com/pglock/pglock-go/pglock"
)

// ExampleDatabase returns the URL of a new database for an Example function, after it has run the
// statements. drop drops it, with the connections to it. A failure ends the program, since an
// example has no test to fail. So it is with the other functions for examples.
func ExampleDatabase(statements ...string) (databaseURL string, drop func()) {
	tb := &exampleTB{}
	databaseURL = pgtest.Database(tb)
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, databaseURL)
	OK(tb, err)
	defer conn.Close(ctx)
	for _, s := range statements {
		_, err := conn.Exec(ctx, s)
		OK(tb, err)
	}
	return databaseURL, tb.end
}

// ExamplePool returns a pool on a new database with the lock tables, after it has run the statements.
// stop closes the pool and drops the database.
func ExamplePool(statements ...string) (pool *pgxpool.Pool, stop func()) {
	url, drop := ExampleDatabase()
	tb := &exampleTB{cleanups: []func(){drop}}
	pool = pgtest.PoolOn(tb, url)
	ctx := context.Background()
	OK(tb, migrations.Up(ctx, pool))
	for _, s := range statements {
		_, err := pool.Exec(ctx, s)
		OK(tb, err)
	}
	return pool, tb.end
}

// ExampleClient returns a client on a new database. stop closes the client and drops the database.
func ExampleClient() (client *pglock.Client, stop func()) {
	pool, drop := ExamplePool()
	tb := &exampleTB{cleanups: []func(){drop}}
	ctx := context.Background()
	client, err := pglock.Open(ctx, pool)
	OK(tb, err)
	return client, func() {
		OK(tb, client.Close(ctx))
		tb.end()
	}
}

// exampleTB lets an example use the fixtures of tests.
type exampleTB struct {
	testing.TB
	cleanups []func()
}

func (*exampleTB) Helper()                           {}
func (*exampleTB) Logf(string, ...any)               {}
func (*exampleTB) Errorf(format string, args ...any) { log.Printf(format, args...) }
func (*exampleTB) Fatal(args ...any)                 { log.Fatal(args...) }
func (*exampleTB) Fatalf(format string, args ...any) { log.Fatalf(format, args...) }
func (e *exampleTB) Cleanup(f func())                { e.cleanups = append(e.cleanups, f) }

// end runs the cleanups, the last one first.
func (e *exampleTB) end() {
	for _, f := range slices.Backward(e.cleanups) {
		f()
	}
}
