package schedule_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/schedule"
)

// fleet is a schema with the clients of several machines.
type fleet struct {
	t      *testing.T
	pool   *pgxpool.Pool
	schema string
}

func newFleet(t *testing.T) fleet {
	t.Helper()
	pool := pgtest.Pool(t)
	f := fleet{t, pool, pgtest.Schema(t, pool)}
	locktest.Exec(t, pool, "CREATE TABLE "+f.table("journal")+" (tick timestamptz, machine int)")
	return f
}

func (f fleet) table(name string) string { return pgx.Identifier{f.schema, name}.Sanitize() }

// client opens the client of another machine.
func (f fleet) client(opts ...pglock.Option) *pglock.Client {
	f.t.Helper()
	return locktest.ClientOn(f.t, f.pool, append(opts, pglock.WithSchema(f.schema))...)
}

// job returns the job of another machine.
func (f fleet) job(opts ...schedule.Option) *schedule.Job {
	f.t.Helper()
	return f.jobOf(f.client(), opts...)
}

func (f fleet) jobOf(client *pglock.Client, opts ...schedule.Option) *schedule.Job {
	f.t.Helper()
	job, err := schedule.New(client, "report", opts...)
	ok(f.t, err)
	return job
}

// expire ends the lease of the machine that runs the job.
func (f fleet) expire() {
	f.t.Helper()
	locktest.Exec(f.t, f.pool, "UPDATE "+f.table("distributed_locks")+" SET expires_at = clock_timestamp() WHERE holder IS NOT NULL")
}

// note returns a function that records in the journal that the tick was run.
func (f fleet) note(tick func() time.Time, machine int) func(ctx context.Context, l *pglock.Lease) error {
	return func(ctx context.Context, _ *pglock.Lease) error {
		_, err := f.pool.Exec(ctx, "INSERT INTO "+f.table("journal")+" VALUES ($1, $2)", tick(), machine)
		return err
	}
}

var ok = locktest.OK
