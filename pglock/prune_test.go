package pglock_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/inspect"
)

func TestP03_PruneDeletesWhatNobodyUses(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.open()
	held := try(t, c, "held")
	expired := try(t, c, "expired", pglock.WithTTL(500*time.Millisecond), pglock.WithRenewEvery(0))
	ends(t, "expiry", expired.Done())
	for i := range 2500 {
		f.sql(`INSERT INTO pglock.distributed_locks (name, token, version, acquired_at, expires_at)
		       VALUES ($1, pglock.next_fencing_token(), 1, now() - interval '25 hours', '-infinity')`, fmt.Sprint("old", i))
	}
	recent := try(t, c, "recent")
	release(t, recent)

	n, err := c.Prune(t.Context(), 24*time.Hour)
	if err != nil || n != 2500 {
		t.Errorf("pruned %d, %v, of 2500 old rows in more than one batch", n, err)
	}
	for _, name := range []string{"held", "expired", "recent"} {
		if _, err := c.Get(t.Context(), name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	pgtest.Eventually(t, "expired by the server's clock too", func() bool {
		_, err := c.Prune(t.Context(), 0)
		must(t, err)
		_, err = c.Get(t.Context(), "expired")
		return errors.Is(err, pglock.ErrNotFound)
	})
	if _, err := c.Get(t.Context(), "held"); err != nil {
		t.Errorf("a held lock was pruned: %v", err)
	}
	fails(t, "the row with the highest token, which is idle", second(c.Get(t.Context(), "recent")), pglock.ErrNotFound)
	if again := try(t, c, "expired"); again.Token() <= recent.Token() {
		t.Errorf("a pruned name was granted token %d after %d", again.Token(), recent.Token())
	}
	fails(t, "a negative age", second(c.Prune(t.Context(), -time.Second)), pglock.ErrInvalidOption)
	release(t, held)
}

// TestPruneKeepsUsedUpTickets: a waiter keeps its ticket for a second after its grant. Only the row of the name
// tells that it is used up, so without the row it would be the head of the queue again.
func TestPruneKeepsUsedUpTickets(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.open()
	held := try(t, c, "n")
	got := f.waits(f.open(), "n")
	release(t, held)
	release(t, next(t, got))
	must(t, second(c.Prune(t.Context(), 0)))
	release(t, try(t, c, "n"))
	pgtest.Eventually(t, "the ticket is deleted, and the row of the name after it", func() bool {
		must(t, second(c.Prune(t.Context(), 0)))
		return errors.Is(second(c.Get(t.Context(), "n")), pglock.ErrNotFound)
	})
}

// TestForgedTicketsKeepNoName: a role that may write rows of the queue can give one any times. Such a ticket is
// skipped like one whose client has died, and keeps no row from pruning.
func TestForgedTicketsKeepNoName(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.open()
	for _, name := range []string{"n", "idle"} {
		release(t, try(t, c, name))
		f.sql("INSERT INTO pglock.lock_waiters (name, client, expires_at, keep_until) VALUES ($1, 'forged', '2261-12-31', '2261-12-31')", name)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	l, err := c.Acquire(ctx, "n")
	must(t, err)
	release(t, l)
	must(t, second(c.Prune(t.Context(), 0)))
	if _, err := c.Get(t.Context(), "idle"); !errors.Is(err, pglock.ErrNotFound) {
		t.Errorf("the name stays: %v", err)
	}
}

// TestP48_PruningDoesNotInheritTheLeaseOptions: with these options, which are valid together, a
// lease with the pruner's TTL would be renewed too late.
func TestP48_PruningDoesNotInheritTheLeaseOptions(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	release(t, try(t, f.open(pglock.WithRetention(0)), "idle"))
	f.open(pglock.WithTTL(10*time.Minute), pglock.WithRenewEvery(2*time.Minute), pglock.WithSafetyMargin(2*time.Minute),
		pglock.WithPruneEvery(50*time.Millisecond, time.Millisecond))
	until(f, "the idle row is gone", 0, "SELECT count(*) FROM pglock.distributed_locks WHERE name = 'idle'")
}

// TestDeadQueueRowsAreDeleted: also if pruning fails, and a failure is logged.
func TestDeadQueueRowsAreDeleted(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		retention time.Duration
		breaks    string
		logged    string
	}{
		"without pruning": {},
		"pruning fails":   {time.Minute, "DROP FUNCTION pglock.raise_pruned(bigint)", "could not prune"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			var log logBuffer
			f.open(pglock.WithPruneEvery(20*time.Millisecond, tc.retention), pglock.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
			if tc.breaks != "" {
				f.sql(tc.breaks)
			}
			f.sql("INSERT INTO pglock.lock_waiters (name, client, expires_at) VALUES ('n', 'dead', now() - interval '1 hour')")
			until(f, "the dead client's row is gone", 0, "SELECT count(*) FROM pglock.lock_waiters")
			pgtest.Eventually(t, "the failure is logged", func() bool { return strings.Contains(log.String(), tc.logged) })
		})
	}
}

// TestP03_ClientsPrune checks that clients prune idle rows, and the queue rows of dead clients, one
// client at a time.
func TestP03_ClientsPrune(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	holder := f.open(pglock.WithRetention(0))
	held := try(t, holder, "held")
	for i := range 30 {
		release(t, try(t, holder, fmt.Sprint("idle", i)))
	}
	f.sql("INSERT INTO pglock.lock_waiters (name, client, expires_at) VALUES ('held', 'dead', now() - interval '1 hour')")
	f.sql("INSERT INTO pglock.lock_waiters (name, client, expires_at) VALUES ('held', 'alive', now() + interval '1 hour')")
	for range 3 {
		f.open(pglock.WithPruneEvery(50*time.Millisecond, time.Millisecond))
	}
	pgtest.Eventually(t, "what is idle is gone", func() bool {
		return value[int](f, "SELECT count(*) FROM pglock.distributed_locks WHERE name LIKE 'idle%'") == 0 &&
			value[int](f, "SELECT count(*) FROM pglock.lock_waiters WHERE client = 'dead'") == 0
	})
	if _, err := holder.Get(t.Context(), "held"); err != nil {
		t.Errorf("a held lock: %v", err)
	}
	if f.tickets("held") != 1 {
		t.Error("a ticket that counts was removed")
	}
	if l := try(t, holder, "idle0"); l.Token() <= held.Token() {
		t.Errorf("token %d after %d", l.Token(), held.Token())
	}
	if _, err := pglock.Open(t.Context(), f.pool, pglock.WithRetention(time.Second)); !errors.Is(err, pglock.ErrInvalidOption) {
		t.Errorf("%v", err)
	}
}

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
		"a wake-up":    func(context.Context) error { return d.run(d.admin, "SELECT pglock.wake_next('queue', 0, NULL)") },
		"prune":        func(ctx context.Context) error { _, err := d.client.Prune(ctx, time.Hour); return err },
		"the views": func(context.Context) error {
			return d.run(d.admin, "SELECT v::text FROM pglock.locks_held AS v; SELECT v::text FROM pglock.locks_waiting AS v")
		},
		"the list": func(ctx context.Context) error {
			for k, err := range d.client.Locks(ctx, inspect.Filter{}) {
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
			must(t, d.run(d.admin, prepare))
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
			must(t, d.run(d.user, test.rows))
			if err := d.operations()[test.harms](t.Context()); err == nil {
				t.Errorf("control: without the constraints the rows do no harm to %s", test.harms)
			}
		})
	}
}
