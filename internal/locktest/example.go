package locktest

import (
	"context"
	"log"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/migrations"
	"github.com/pglock/pglock-go/pglock"
)

// ExamplePool returns a pool on a new database with the lock tables, after it has run the statements.
// stop closes the pool and drops the database, with the connections to it. A failure ends the program,
// since an example has no test to fail. So it is with the other functions for examples.
func ExamplePool(statements ...string) (pool *pgxpool.Pool, stop func()) {
	tb := &exampleTB{}
	pool = pgtest.PoolOn(tb, pgtest.Database(tb))
	OK(tb, migrations.Up(tb.Context(), pool))
	for _, s := range statements {
		Exec(tb, pool, s)
	}
	return pool, tb.end
}

// ExampleClient returns a client on a new database. stop closes the client and drops the database.
func ExampleClient() (client *pglock.Client, stop func()) {
	tb := &exampleTB{}
	return Client(tb, pgtest.Database(tb)), tb.end
}

// exampleTB lets an example use the fixtures of tests.
type exampleTB struct {
	testing.TB
	cleanups []func()
}

func (*exampleTB) Helper()                           {}
func (*exampleTB) Context() context.Context          { return context.Background() }
func (*exampleTB) Logf(string, ...any)               {}
func (*exampleTB) Errorf(format string, args ...any) { log.Printf(format, args...) }
func (*exampleTB) Error(args ...any)                 { log.Print(args...) }
func (*exampleTB) Fatal(args ...any)                 { log.Fatal(args...) }
func (*exampleTB) Fatalf(format string, args ...any) { log.Fatalf(format, args...) }
func (e *exampleTB) Cleanup(f func())                { e.cleanups = append(e.cleanups, f) }

// end runs the cleanups, the last one first.
func (e *exampleTB) end() {
	for _, f := range slices.Backward(e.cleanups) {
		f()
	}
}
