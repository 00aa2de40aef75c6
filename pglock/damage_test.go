package pglock_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/pglock"
)

// damaged is a schema in which a role of grant_user writes rows by hand.
type damaged struct {
	*testing.T
	admin, user *pgxpool.Pool
	schema      string
	client      *pglock.Client
}

func newDamaged(t *testing.T) *damaged {
	t.Helper()
	admin := pgtest.Pool(t)
	name := pgtest.Schema(t, admin)
	return &damaged{t, admin, pgtest.UserPool(t, admin, name), name, locktest.ClientOn(t, admin, pglock.WithSchema(name))}
}

// run executes statements that are written for the default schema.
func (d *damaged) run(pool *pgxpool.Pool, statements string) error {
	_, err := pool.Exec(d.Context(), schema.Render(statements, d.schema), pgx.QueryExecModeSimpleProtocol)
	return err
}

// operations returns what others do, in the schema and with the names that are damaged.
func (d *damaged) operations() map[string]func(ctx context.Context) error {
	do := func(name string) func(context.Context) error {
		return func(ctx context.Context) error {
			l, err := d.client.TryAcquire(ctx, name)
			if err != nil {
				return err
			}
			return l.Release(ctx)
		}
	}
	return map[string]func(ctx context.Context) error{
		"another name": do("other"),
		"a wake-up":    func(context.Context) error { return d.run(d.admin, "SELECT pglock.wake_next('queue', 0)") },
		"prune":        func(ctx context.Context) error { _, err := d.client.Prune(ctx, time.Hour); return err },
		"the views": func(context.Context) error {
			return d.run(d.admin, "SELECT v::text FROM pglock.locks_held AS v; SELECT v::text FROM pglock.locks_waiting AS v")
		},
		"the list": func(ctx context.Context) error {
			for k, err := range d.client.Locks(ctx, pglock.LockFilter{}) {
				if err != nil {
					return err
				}
				if _, err := json.Marshal(k); err != nil {
					return err
				}
				if k.HeldFor < 0 || k.Remaining < 0 {
					return fmt.Errorf("%q: held for %v, %v remain", k.Name, k.HeldFor, k.Remaining)
				}
			}
			return nil
		},
		"a semaphore": func(ctx context.Context) error {
			s := d.client.Semaphore("permits", 3)
			l, err := s.TryAcquire(ctx)
			if err != nil {
				return err
			}
			return l.Release(ctx)
		},
	}
}

// TestAUserDoesNotStopOthers: rows that a role of grant_user writes by hand are refused, or make no
// statement of others fail. The control makes the same rows without the constraints.
func TestAUserDoesNotStopOthers(t *testing.T) {
	t.Parallel()
	const waiter = "INSERT INTO pglock.lock_waiters (name, client, expires_at, since) VALUES "
	for name, test := range map[string]struct{ rows, harms string }{
		"a waiter since infinity":    {waiter + "('held', 'c', now() + interval '1 hour', 'infinity')", "the list"},
		"a waiter for ever":          {waiter + "('held', 'c', 'infinity', '0044-03-15 BC')", ""},
		"a waiter without a channel": {waiter + "('queue', '/5', now() + interval '1 hour', now())", "a wake-up"},
		"a lock from before year 1":  {"UPDATE pglock.distributed_locks SET acquired_at = '0044-03-15 BC' WHERE name = 'held'", "the list"},
		"a lock for 8000 years":      {"UPDATE pglock.distributed_locks SET expires_at = '9998-01-01' WHERE name = 'held'", "the list"},
		"a holder that never held":   {"UPDATE pglock.distributed_locks SET expires_at = '-infinity' WHERE name = 'held'", ""},
		"fewer permits than none":    {"UPDATE pglock.distributed_locks SET in_use = -2147483648 WHERE name = 'permits'", "a semaphore"},
		"a semaphore of no permits":  {"UPDATE pglock.distributed_locks SET capacity = -5 WHERE name = 'held'", ""},
		"permits of another century": {"INSERT INTO pglock.lock_permits (name, token, weight, version, acquired_at, expires_at, request, holder) VALUES ('permits', 9, 1, 1, '0044-03-15 BC', '9998-01-01', gen_random_uuid(), 'x')", "the list"},
		"permits beyond an integer": {"UPDATE pglock.distributed_locks SET in_use = 3 WHERE name = 'permits'; " +
			"INSERT INTO pglock.lock_permits (name, token, weight, version, acquired_at, expires_at, request) SELECT 'permits', i, 1073741824, 1, now(), '-infinity', gen_random_uuid() FROM generate_series(7, 9) AS i", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDamaged(t)
			const prepare = `INSERT INTO pglock.distributed_locks (name, token, version, acquired_at, expires_at, holder) VALUES ('held', 1, 1, now(), now() + interval '1 hour', 'h'), ('queue', 1, 1, now(), '-infinity', NULL);
				INSERT INTO pglock.distributed_locks (name, token, version, acquired_at, expires_at, capacity, in_use) VALUES ('permits', 1, 1, now(), '-infinity', 3, 0)`
			if err := d.run(d.admin, prepare); err != nil {
				t.Fatal(err)
			}
			var refusal *pgconn.PgError
			if err := d.run(d.user, test.rows); err != nil && (!errors.As(err, &refusal) || refusal.Code != "23514") {
				t.Fatalf("%v, want nil or check_violation", err)
			}
			for what, operation := range d.operations() {
				if err := operation(t.Context()); err != nil {
					t.Errorf("%s: %v", what, err)
				}
			}
			if refusal == nil || test.harms == "" {
				return
			}
			if err := d.run(d.admin, `ALTER DOMAIN pglock.finite_time DROP CONSTRAINT finite_time_check; ALTER DOMAIN pglock.lease_end DROP CONSTRAINT lease_end_check;
				ALTER DOMAIN pglock.wake_channel DROP CONSTRAINT wake_channel_check; ALTER DOMAIN pglock.permit_sum DROP CONSTRAINT permit_sum_check`); err != nil {
				t.Fatal(err)
			}
			if err := d.run(d.user, test.rows); err != nil {
				t.Fatalf("control: %v", err)
			}
			if err := d.operations()[test.harms](t.Context()); err == nil {
				t.Errorf("control: without the constraints the rows do no harm to %s", test.harms)
			}
		})
	}
}
