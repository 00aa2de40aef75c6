package leasetable_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/leasetable"
)

// TestALongQueueCostsOnlyItsOwnLock: 10,000 processes wait for one name. Statements about it read
// the queue up to four times. Those about another name, with one waiter, do not read it. In the control,
// the server has statistics about the names of waiters: it expects as many for each name.
func TestALongQueueCostsOnlyItsOwnLock(t *testing.T) {
	t.Parallel()
	const queue = 10_000
	pool := pgtest.Pool(t)
	name := pgtest.Schema(t, pool)
	conn, err := pgx.Connect(t.Context(), pool.Config().ConnString())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	exec := func(sql string, args ...any) {
		t.Helper()
		if _, err := conn.Exec(t.Context(), schema.Render(sql, name), args...); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	read := func() (rows int) {
		t.Helper()
		const sql = `SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables
			WHERE schemaname = $1 AND relname = 'lock_waiters'`
		if err := conn.QueryRow(t.Context(), sql, name).Scan(&rows); err != nil {
			t.Fatal(err)
		}
		return rows
	}
	exec(`INSERT INTO pglock.lock_waiters (name, client, expires_at)
		SELECT 'long', 'client_' || n, clock_timestamp() + interval '1 hour' FROM generate_series(1, $1::int) AS n`, queue)
	exec(`INSERT INTO pglock.lock_waiters (name, client, expires_at) VALUES ('short', 'client_1', clock_timestamp() + interval '1 hour')`)
	exec(`INSERT INTO pglock.distributed_locks (name, token, version, acquired_at, expires_at)
		SELECT n, 0, 1, clock_timestamp(), '-infinity' FROM unnest('{long,short}'::text[]) AS n`)
	exec("ANALYZE pglock.lock_waiters")
	const free = "UPDATE pglock.distributed_locks SET holder = NULL, expires_at = '-infinity', ended_at = clock_timestamp()"
	const held = "UPDATE pglock.distributed_locks SET holder = 'h', expires_at = clock_timestamp() + interval '1 hour', token = 1"
	const head, last = int64(1), int64(1) << 62
	statements := leasetable.Statements(name)
	measure := func(lock, verb, state string, args []any) int {
		t.Helper()
		sql := statements[verb]
		exec("BEGIN")
		exec(state)
		before, began := read(), time.Now()
		if _, err := conn.Exec(t.Context(), sql, args...); err != nil {
			t.Fatalf("%s: %v", verb, err)
		}
		took, rows := time.Since(began), read()-before
		t.Logf("%s, %s: %d rows, %v", lock, verb, rows, took)
		exec("ROLLBACK")
		return rows
	}
	for _, control := range []bool{false, true} {
		most := 0
		for _, lock := range []string{"long", "short"} {
			fast := func(ticket int64) []any {
				return []any{lock, "h", "00000000-0000-4000-8000-000000000001", "{}", int64(1), ticket}
			}
			full := acquireArgs([]string{lock})
			for _, c := range []struct {
				verb, state string
				args        []any
			}{
				{"acquire_fast", free, fast(head)},
				{"acquire_fast", free, fast(last)},
				{"acquire_full", free, full},
				{"peek", held, []any{[]string{lock}, full[2], []int64{last}}},
				{"release", held, []any{lock, int64(1), int64(0), true}},
				{"release_batch", held, []any{[]string{lock}, []int64{1}, []int64{0}, true}},
				{"leave_queue", held, []any{[]string{lock}, "client_1", int64(-1), true}},
			} {
				rows := measure(lock, c.verb, c.state, c.args)
				if lock == "short" {
					most = max(most, rows)
				} else if rows > 4*queue {
					t.Errorf("%s of the long queue reads %d rows", c.verb, rows)
				}
			}
		}
		if found := most > 20; found != control {
			t.Errorf("control %t: statements about another lock read up to %d rows of the queues", control, most)
		}
		exec("ALTER TABLE pglock.lock_waiters ALTER COLUMN name SET STATISTICS 100")
		exec("ANALYZE pglock.lock_waiters")
	}
}
