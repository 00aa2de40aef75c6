package leasetable_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/pgtx"
	"github.com/pglock/pglock-go/internal/schema"
)

// querier is a pool or a transaction.
type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// waits is a schema whose locks x and y are held.
type waits struct {
	t      *testing.T
	pool   *pgxpool.Pool
	schema string
}

func newWaits(t *testing.T) waits {
	t.Helper()
	pool := pgtest.Pool(t, func(c *pgxpool.Config) {
		c.ConnConfig.RuntimeParams["statement_timeout"] = "60s" // of a search that does not end
	})
	w := waits{t, pool, pgtest.Schema(t, pool)}
	for _, lock := range []string{"x", "y"} {
		w.query(pool, "SELECT held_by FROM pglock.acquire($1, 'holder of ' || $1)", lock)
	}
	return w
}

// query returns one value.
func (w waits) query(db querier, sql string, args ...any) (got string) {
	w.t.Helper()
	locktest.OK(w.t, db.QueryRow(w.t.Context(), schema.Render(sql, w.schema), args...).Scan(&got))
	return got
}

// wait says that the holder of all other locks waits for that one, and returns the cycle. It is the wait of another
// lock if that is given.
func (w waits) wait(db querier, lock string, of ...string) string {
	w.t.Helper()
	return w.query(db, waitSQL, lock, append(of, lock)[0])
}

const waitSQL = "SELECT coalesce(pglock.nested_wait(ARRAY[$1::text], '{1}', array_agg(l.token), 'who waits for ' || $1, " +
	"md5($2)::uuid, holders => array_agg(l.holder)), '') FROM pglock.locks_held AS l WHERE l.name <> $1"

// TestTwoWaitsAtOnce: of two calls that close a cycle at the same time, the second one waits for the first one's
// transaction, and finds the cycle.
func TestTwoWaitsAtOnce(t *testing.T) {
	t.Parallel()
	w := newWaits(t)
	w.wait(w.pool, "another lock") // the row that serializes them exists
	tx, err := w.pool.Begin(t.Context())
	locktest.OK(t, err)
	if cycle := w.wait(tx, "x"); cycle != "" {
		t.Errorf("the first wait: %s", cycle)
	}
	if jit := w.query(tx, "SHOW jit"); jit != "off" {
		t.Errorf("jit is %s: it compiles the search for most of a second", jit)
	}
	second := make(chan string, 1)
	go func() {
		var cycle string
		var err error
		for again := true; again; again = pgtx.SQLState(err) == pgtx.LockNotAvailable { // it waits for a quarter of a second only
			err = w.pool.QueryRow(t.Context(), schema.Render(waitSQL, w.schema), "y", "y").Scan(&cycle)
		}
		if err != nil {
			t.Errorf("the second wait: %v", err)
		}
		second <- cycle
	}()
	pgtest.Eventually(t, "the second one waits", func() bool {
		return len(second) > 0 || w.query(w.pool, "SELECT count(*)::text FROM pg_stat_activity WHERE pg_blocking_pids(pid) @> ARRAY[$1::int]", tx.Conn().PgConn().PID()) == "1"
	})
	locktest.OK(t, tx.Commit(t.Context()))
	if cycle := locktest.Receive(t, second); cycle == "" {
		t.Error("the second wait did not find the cycle")
	}
}

// TestTheYoungestGivesUp: a cycle can also close without a new wait. Whoever looks then, the youngest gives up.
func TestTheYoungestGivesUp(t *testing.T) {
	t.Parallel()
	w := newWaits(t)
	w.wait(w.pool, "x")
	w.wait(w.pool, "another lock")
	w.query(w.pool, "UPDATE pglock.nested_waits SET names = '{y}' WHERE names = '{another lock}' RETURNING 'changed'")
	if cycle := w.wait(w.pool, "x"); cycle != "" {
		t.Errorf("the older one: %s", cycle)
	}
	if cycle := w.wait(w.pool, "y", "another lock"); cycle == "" {
		t.Error("the younger one did not find the cycle")
	}
}

// TestExpiredWaitsAreDeleted: by the next call that begins to wait, because a process that died ended none of its own.
func TestExpiredWaitsAreDeleted(t *testing.T) {
	t.Parallel()
	w := newWaits(t)
	w.wait(w.pool, "x")
	w.query(w.pool, "UPDATE pglock.nested_waits SET expires_at = clock_timestamp() WHERE number > 0 RETURNING 'expired'")
	w.wait(w.pool, "another lock")
	if rows := w.query(w.pool, "SELECT string_agg(n.names[1], ' ') FROM pglock.nested_waits AS n WHERE number > 0"); rows != "another lock" {
		t.Errorf("the waits for %s", rows)
	}
}

// TestAWaitBehindADeadlockIsInNone: a call waits for x behind one that wants x and a reader's place in rw, where the
// first one reads too. The holders of x and y are in a deadlock, which ends by one of them. In the control, the call
// before it wants to write in rw, and so both wait for each other.
func TestAWaitBehindADeadlockIsInNone(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		weight   int
		deadlock bool
	}{{1, false}, {1 << 30, true}} {
		w := newWaits(t)
		const held = "(SELECT ARRAY[l.token] FROM pglock.distributed_locks AS l WHERE l.name = $1)"
		for number, name := range []string{"x", "y"} {
			w.query(w.pool, "INSERT INTO pglock.nested_waits (number, names, weights, holds, holders, ticket, holder, expires_at, request) "+
				"SELECT $2, ARRAY[translate($1, 'xy', 'yx')], '{1}', "+held+", ARRAY['holder of ' || $1], 9223372036854775807, $1, clock_timestamp() + interval '1 hour', gen_random_uuid() RETURNING holder", name, number+1)
		}
		w.query(w.pool, "SELECT outcome FROM pglock.acquire_slots('{rw}', '{1073741824}', '{1}', gen_random_uuid(), 'reader', '{}', 3600000000, 9223372036854775807, false)")
		w.query(w.pool, "INSERT INTO pglock.lock_waiters (name, client, ticket, expires_at, since, holder, weight) "+
			"SELECT n.name, 'c_all/1', t.ticket, clock_timestamp() + interval '1 hour', clock_timestamp(), 'together', n.weight "+
			"FROM (SELECT pglock.next_ticket()) AS t (ticket), (VALUES ('x', 1), ('rw', $1::integer)) AS n (name, weight) RETURNING client", tc.weight)
		cycle := w.query(w.pool, "SELECT coalesce(pglock.nested_wait('{x}', '{1}', (SELECT ARRAY[p.token] FROM pglock.lock_permits AS p), 'reader', gen_random_uuid()), '')")
		if (cycle != "") != tc.deadlock {
			t.Errorf("with the weight %d: %q", tc.weight, cycle)
		}
	}
}
