package doctor_test

import (
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/cmd/pglock/internal/doctor"
)

// TestTokens: the sequence is set back, as after a restore. The remedy lifts it.
func TestTokens(t *testing.T) {
	t.Parallel()
	p := newPatient(t)
	p.insertLocks(5, 0)
	p.expect("tokens", doctor.OK, "highest 5")
	p.exec("SELECT setval($1::text::regclass, 3)", p.table("fencing_tokens"))
	r := p.expect("tokens", doctor.Fail, "the sequence is at 3, behind 5")
	p.exec(r.Remedy)
	p.expect("tokens", doctor.OK, "highest 5")
	p.exec("SELECT setval($1::text::regclass, 4)", p.table("fencing_tokens"))
	p.exec("UPDATE " + p.table("distributed_locks") + " SET ticket = 1000 WHERE name = 'lock 1'") // of a waiter
	p.exec(p.expect("tokens", doctor.Fail, "behind 1000").Remedy)
	p.expect("tokens", doctor.OK, "")

	p.exec("UPDATE " + p.table("distributed_locks") + " SET ticket = 4611686018427387904 WHERE name = 'lock 2'")
	p.expect("tokens", doctor.Warn, "1 rows have tokens")
}

// TestClock: the server's clock was set back after a grant. The clocks of the machines are judged
// from their difference.
func TestClock(t *testing.T) {
	t.Parallel()
	p := newPatient(t)
	p.insertLocks(1, 0)
	p.expect("clock", doctor.OK, "no grant is in the future")
	p.exec("UPDATE " + p.table("distributed_locks") + " SET acquired_at = clock_timestamp() + interval '1 hour'")
	p.expect("clock", doctor.Fail, "in the future")

	for _, test := range []struct {
		ahead, uncertain time.Duration
		level            doctor.Level
	}{
		{0, 0, ""},
		{4 * time.Second, 0, ""},
		{-4 * time.Second, 0, ""},
		{6 * time.Second, 2 * time.Second, ""},
		{6 * time.Second, 0, doctor.Warn},
		{-6 * time.Second, 0, doctor.Warn},
		{-time.Hour, 0, doctor.Warn},
		{61 * time.Second, 0, doctor.Fail},
	} {
		var level doctor.Level
		for _, r := range doctor.JudgeClock(test.ahead, test.uncertain) {
			level = r.Level
		}
		if level != test.level {
			t.Errorf("%v ±%v: %q, want %q", test.ahead, test.uncertain, level, test.level)
		}
	}
}

func TestIdleRows(t *testing.T) {
	t.Parallel()
	p := newPatient(t)
	p.insertLocks(999, 49*time.Hour)
	p.expect("idle rows", doctor.OK, "999 names, 0 held")
	p.exec("INSERT INTO " + p.table("distributed_locks") + " (name, token, version, acquired_at, expires_at, holder) VALUES ('expired', 1, 1, clock_timestamp() - interval '3 days', clock_timestamp() - interval '50 hours', 'x')")
	p.expect("idle rows", doctor.Warn, "1000 of 1000 names have been idle")
	client := locktest.ClientOn(t, p.admin, pglock.WithSchema(p.schema))
	if n, err := client.Prune(t.Context(), time.Hour); n != 1000 || err != nil {
		t.Errorf("pruned %d, %v", n, err)
	}
	p.expect("idle rows", doctor.OK, "")

	p.exec("INSERT INTO " + p.table("lock_waiters") + " (name, client, expires_at) SELECT 'n', 'client ' || i, clock_timestamp() - interval '2 hours' FROM generate_series(1, 1000) AS i")
	p.expect("idle rows", doctor.Warn, "1000 queue rows of dead clients")
}

// TestDeadRows: a snapshot keeps the versions of updated rows. When it ends, VACUUM removes them.
func TestDeadRows(t *testing.T) {
	t.Parallel()
	p := newPatient(t)
	p.insertLocks(100, 0)
	p.expect("dead rows", doctor.OK, "distributed_locks")
	reader := p.session(true)
	if _, err := reader.Exec(t.Context(), "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1"); err != nil {
		t.Fatal(err)
	}
	p.limits.LongTransaction = time.Nanosecond
	p.expect("transactions", doctor.Warn, "idle in transaction")
	p.limits.LongTransaction = time.Hour
	p.expect("transactions", doctor.OK, "1 open")
	for range 120 {
		p.exec("UPDATE " + p.table("distributed_locks") + " SET version = version + 1")
	}
	p.admin.Reset() // a backend reports its statistics when it ends
	pgtest.Eventually(t, locktest.Patience, "the server knows of the dead rows", func() bool {
		return locktest.Scan[int](t, p.admin, "SELECT n_dead_tup FROM pg_stat_all_tables WHERE relid = $1::text::regclass", p.table("distributed_locks")) > 10_500
	})
	p.expect("dead rows", doctor.Warn, "VACUUM "+p.table("distributed_locks"))
	if _, err := reader.Exec(t.Context(), "ROLLBACK"); err != nil {
		t.Fatal(err)
	}
	p.exec("VACUUM " + p.table("distributed_locks"))
	pgtest.Eventually(t, locktest.Patience, "the dead rows are gone", func() bool {
		for _, r := range p.run() {
			if r.Check == "dead rows" && r.Level == doctor.OK {
				return true
			}
		}
		return false
	})
	p.limits.BloatedSize = 100_000
	p.expect("dead rows", doctor.Warn, "VACUUM FULL "+p.table("distributed_locks"))
}

// TestHiddenTransactions: a role without pg_read_all_stats does not see those of other roles, and is
// told so.
func TestHiddenTransactions(t *testing.T) {
	t.Parallel()
	p := newPatient(t)
	other := p.session(false)
	if _, err := other.Exec(t.Context(), "BEGIN; SELECT pg_current_xact_id()"); err != nil {
		t.Fatal(err)
	}
	p.limits.LongTransaction = time.Nanosecond
	p.expect("transactions", doctor.OK, "GRANT pg_read_all_stats")
	p.exec("GRANT pg_read_all_stats TO " + p.role())
	p.expect("transactions", doctor.Warn, "pg_terminate_backend")
}

func TestAutovacuumOfATable(t *testing.T) {
	t.Parallel()
	p := newPatient(t)
	p.expect("autovacuum", doctor.OK, "on")
	p.exec("ALTER TABLE " + p.table("lock_waiters") + " SET (autovacuum_enabled = off)")
	p.exec(p.expect("autovacuum", doctor.Fail, "lock_waiters").Remedy)
	p.expect("autovacuum", doctor.OK, "on")
}
