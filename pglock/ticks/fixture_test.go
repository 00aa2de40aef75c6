package ticks_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/ticks"
)

// patience is how long a test waits for what must come.
const patience = time.Minute

// fleet is a schema, and clients on it as different machines have them.
type fleet struct {
	t      *testing.T
	pool   *pgxpool.Pool
	schema string
}

func newFleet(t *testing.T) fleet {
	t.Helper()
	pool := pgtest.Pool(t)
	f := fleet{t, pool, pgtest.Schema(t, pool)}
	f.exec("CREATE TABLE " + f.table("journal") + " (tick timestamptz, machine int)")
	return f
}

func (f fleet) table(name string) string { return pgx.Identifier{f.schema, name}.Sanitize() }

func (f fleet) exec(sql string, args ...any) {
	f.t.Helper()
	if _, err := f.pool.Exec(f.t.Context(), sql, args...); err != nil {
		f.t.Fatalf("%s: %v", sql, err)
	}
}

// job returns the job as another machine has it.
func (f fleet) job(opts ...ticks.Option) *ticks.Job {
	f.t.Helper()
	client, err := pglock.Open(f.t.Context(), f.pool, pglock.WithSchema(f.schema))
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() {
		if err := client.Close(context.Background()); err != nil && !errors.Is(err, pglock.ErrLost) { // a lease that the test took away
			f.t.Error(err)
		}
	})
	job, err := ticks.New(client, "report", opts...)
	if err != nil {
		f.t.Fatal(err)
	}
	return job
}

// takeAway ends the lease of whoever runs the job.
func (f fleet) takeAway() {
	f.t.Helper()
	f.exec("UPDATE " + f.table("distributed_locks") + " SET expires_at = clock_timestamp() WHERE holder IS NOT NULL")
}

// note returns a function that writes down that the tick was run.
func (f fleet) note(tick func() time.Time, machine int) func(ctx context.Context, l *pglock.Lease) error {
	return func(ctx context.Context, _ *pglock.Lease) error {
		_, err := f.pool.Exec(ctx, "INSERT INTO "+f.table("journal")+" VALUES ($1, $2)", tick(), machine)
		return err
	}
}
