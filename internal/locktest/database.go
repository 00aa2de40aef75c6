package locktest

import (
	"context"
	"log"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/migrations"
)

// ExamplePool returns a pool on a new database for an Example function, with the lock tables, after
// it has run the statements. stop closes the pool and drops the database. A failure ends the
// program, since an example has no test to fail.
func ExamplePool(statements ...string) (pool *pgxpool.Pool, stop func()) {
	tb := &exampleTB{}
	ctx := context.Background()
	pool = pgtest.PoolOn(tb, pgtest.Database(tb))
	if err := migrations.Up(ctx, pool); err != nil {
		log.Fatal(err)
	}
	for _, s := range statements {
		if _, err := pool.Exec(ctx, s); err != nil {
			log.Fatal(err)
		}
	}
	return pool, func() {
		for i := len(tb.cleanups) - 1; i >= 0; i-- {
			tb.cleanups[i]()
		}
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
