package fencing_test

import (
	"context"
	"log"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/leasetable"
	"github.com/pglock/pglock-go/migrations"
)

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

// exampleDatabase returns a pool on a new database with the lock tables, after it has run the
// statements.
func exampleDatabase(statements ...string) (pool *pgxpool.Pool, client *leasetable.Client, done func()) {
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
	client, err := leasetable.Open(ctx, pool)
	if err != nil {
		log.Fatal(err)
	}
	return pool, client, func() {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		_ = client.Close(ctx) // some of its leases are lost
		for i := len(tb.cleanups) - 1; i >= 0; i-- {
			tb.cleanups[i]()
		}
	}
}

// overtake grants the lease's lock to another holder.
func overtake(ctx context.Context, client *leasetable.Client, l *leasetable.Lease) *leasetable.Lease {
	if err := l.Release(ctx); err != nil {
		log.Fatal(err)
	}
	next, err := client.Acquire(ctx, l.Name())
	if err != nil {
		log.Fatal(err)
	}
	return next
}
