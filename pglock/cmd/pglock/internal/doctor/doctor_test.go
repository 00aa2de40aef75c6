package doctor_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/internal/testserver"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/cmd/pglock/internal/doctor"
)

const (
	asOldest  = "CREATE OR REPLACE FUNCTION <pglock_oldest_client>() RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT %d'"
	asVersion = "CREATE OR REPLACE FUNCTION <pglock_schema_version>() RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT %d'"
	grantUser = "SELECT <schema>.grant_user(<user>)"
	reload    = "; SELECT pg_reload_conf()"

	// addLocks adds %d free names whose last grant was an interval %s ago.
	addLocks = `INSERT INTO <distributed_locks> (name, token, version, acquired_at, expires_at)
		SELECT 'lock ' || i, nextval(<tokens>), 1, clock_timestamp() - interval '%s', '-infinity' FROM generate_series(1, %d) AS i`
	noLocks = "DELETE FROM <distributed_locks>; SELECT setval(<tokens>, 1000000)"
)

// fault is something that a check finds.
type fault struct {
	set    string         // SQL that a superuser runs
	hold   string         // SQL after which a superuser's session stays open
	own    string         // SQL after which a session of the role stays open
	change func(*patient) // for doctor's configuration

	check string
	level doctor.Level
	says  string // in what is found, or in the remedy
	fix   string // SQL; by default the remedy, or what follows "run " in it, unless there is nothing to undo
}

var faults = []fault{
	{change: func(p *patient) { p.limits.OldestServer = 99 }, check: "server", level: doctor.Fail, says: "is too old: use PostgreSQL 99"},
	{set: "ALTER ROLE <role> SET default_transaction_read_only = on", check: "server", level: doctor.Fail, says: "ALTER ROLE <role> RESET"},
	{set: "ALTER DATABASE <db> SET default_transaction_read_only = on", check: "server", level: doctor.Fail, says: "ALTER DATABASE <db> RESET"},
	{set: "ALTER ROLE <role> IN DATABASE <db> SET default_transaction_read_only = on", check: "server", level: doctor.Fail, says: "ALTER ROLE <role> IN DATABASE <db> RESET"},
	{change: func(p *patient) { p.conn.RuntimeParams["default_transaction_read_only"] = "on" }, check: "server", level: doctor.Fail, says: "connection string"},
	{set: "ALTER SYSTEM SET default_transaction_read_only = on" + reload, check: "server", level: doctor.Fail, says: "the server's configuration",
		fix: "ALTER SYSTEM RESET default_transaction_read_only" + reload},
	{hold: "BEGIN; LOCK TABLE pg_settings", change: func(p *patient) { p.limits.Scan = 300 * time.Millisecond }, check: "server", level: doctor.Warn, says: "could not be read in 300ms"},

	{change: func(p *patient) { p.schema = "none" }, check: "schema", level: doctor.Fail, says: `no tables of pglock in schema "none": run pglock migrate up --schema none`},
	{set: fmt.Sprintf(asVersion, 1), check: "schema", level: doctor.Fail, says: "run pglock migrate up --schema 'it'", fix: fmt.Sprintf(asVersion, schema.Version)},
	{set: fmt.Sprintf(asOldest, 99), check: "schema", level: doctor.Fail, says: "use a newer pglock", fix: fmt.Sprintf(asOldest, 1)},
	{set: fmt.Sprintf(asVersion, 99), check: "migrations", level: doctor.Fail, says: "the tables are of version 99", fix: fmt.Sprintf(asVersion, schema.Version)},
	{set: "REVOKE USAGE ON SCHEMA <schema> FROM <role>", check: "schema", level: doctor.Fail, says: "may not use schema"},
	{set: "REVOKE EXECUTE ON FUNCTION <pglock_schema_version>() FROM PUBLIC, <role>", check: "schema", level: doctor.Fail, says: "lacks EXECUTE on pglock_schema_version"},
	{set: "UPDATE <pglock_migrations> SET dirty = true", check: "migrations", level: doctor.Fail, says: "pglock migrate version", fix: "UPDATE <pglock_migrations> SET dirty = false"},
	{set: "REVOKE SELECT ON <pglock_migrations> FROM <role>", check: "migrations", level: doctor.Skip, says: "may not look: permission denied", fix: grantUser},

	{set: "REVOKE DELETE ON <lock_waiters> FROM <role>", check: "rights", level: doctor.Fail, says: `" lacks DELETE on lock_waiters: `},
	{set: "REVOKE EXECUTE ON FUNCTION pg_notify(text, text) FROM PUBLIC", check: "rights", level: doctor.Warn, says: "GRANT EXECUTE ON FUNCTION pg_notify"},
	{set: "ALTER TABLE <once_keys> RENAME holder TO x; ALTER TABLE <once_keys> ADD more text", check: "schema", level: doctor.Fail,
		says: fmt.Sprintf("has version %d, but not its objects (column once_keys.holder is missing): restore it from a backup", schema.Version),
		fix:  "ALTER TABLE <once_keys> RENAME x TO holder"},
	{set: "ALTER FUNCTION <pglock_oldest_client>() RENAME TO x", check: "schema", level: doctor.Fail, says: "function pglock_oldest_client() is missing",
		fix: "ALTER FUNCTION <schema>.x() RENAME TO pglock_oldest_client"},
	{set: "DELETE FROM <pglock_migrations>", check: "migrations", level: doctor.OK, says: "none failed half-way",
		fix: fmt.Sprintf("INSERT INTO <pglock_migrations> VALUES (%d, false)", schema.Version)},
	{
		set: "UPDATE <pglock_migrations> SET version = 2", check: "migrations", level: doctor.Fail,
		says: fmt.Sprintf("says version 2, and the tables are of version %d", schema.Version),
		fix:  fmt.Sprintf("UPDATE <pglock_migrations> SET version = %d", schema.Version),
	},
	{set: "ALTER TABLE <distributed_locks> ENABLE ROW LEVEL SECURITY", check: "server", level: doctor.Fail, says: "row security hides all rows of", fix: "ALTER TABLE <distributed_locks> DISABLE ROW LEVEL SECURITY"},
	{set: "ALTER TABLE <distributed_locks> SET UNLOGGED", check: "server", level: doctor.Fail, says: "distributed_locks is unlogged"},
	{set: "ALTER TABLE <lock_waiters> SET LOGGED", check: "server", level: doctor.OK, says: "accepts writes", fix: "ALTER TABLE <lock_waiters> SET UNLOGGED"},
	{set: "ALTER TABLE <distributed_locks> ENABLE ROW LEVEL SECURITY; CREATE POLICY p ON <distributed_locks> USING (true)", check: "rights", level: doctor.Warn,
		says: "policies may hide rows of distributed_locks", fix: "DROP POLICY p ON <distributed_locks>; ALTER TABLE <distributed_locks> DISABLE ROW LEVEL SECURITY"},

	{set: "SELECT <schema>.grant_writer(<user>), <schema>.grant_owner(<user>)", check: "grants", level: doctor.OK, says: "no role has more"},
	{set: "GRANT SELECT ON <locks_held>, <distributed_locks> TO PUBLIC", check: "grants", level: doctor.OK, says: "no role has more", fix: "REVOKE SELECT ON <locks_held>, <distributed_locks> FROM PUBLIC"},
	{set: "GRANT SELECT ON <fencing_secret> TO <role>", check: "grants", level: doctor.Fail, says: "has SELECT on"},
	{set: "GRANT SELECT (secret) ON <fencing_secret> TO PUBLIC", check: "grants", level: doctor.Fail, says: "PUBLIC has SELECT"},
	{set: "GRANT SELECT ON <fencing_epoch> TO <role>", check: "grants", level: doctor.Fail, says: "has SELECT on"},
	{set: "GRANT INSERT, UPDATE ON <fencing_high_water> TO PUBLIC", check: "grants", level: doctor.Fail, says: "PUBLIC has INSERT, UPDATE"},
	{set: "GRANT TRIGGER, TRUNCATE ON <once_keys> TO <role>", check: "grants", level: doctor.Fail, says: "TRIGGER, TRUNCATE"},
	{set: "GRANT DELETE ON <distributed_locks> TO PUBLIC", check: "grants", level: doctor.Fail, says: "PUBLIC has DELETE"},
	{set: "GRANT INSERT ON <pglock_migrations> TO <role>", check: "grants", level: doctor.Fail, says: "has INSERT on"},
	{set: "GRANT UPDATE ON SEQUENCE <fencing_tokens> TO <role>", check: "grants", level: doctor.Fail, says: "has UPDATE on"},
	{set: "GRANT EXECUTE ON FUNCTION <bound_grants>() TO <role>", check: "grants", level: doctor.Fail, says: "has EXECUTE on"},
	{set: "GRANT EXECUTE ON FUNCTION <bind>(text, bigint) TO PUBLIC", check: "grants", level: doctor.Fail, says: "PUBLIC has EXECUTE"},
	{set: "GRANT CREATE ON SCHEMA <schema> TO PUBLIC", check: "grants", level: doctor.Fail, says: "PUBLIC has CREATE"},

	{set: "CREATE PUBLICATION p FOR ALL TABLES", check: "replication slots", level: doctor.Warn, says: `publication "p" sends the key of the seals`, fix: "DROP PUBLICATION p"},
	{set: "CREATE PUBLICATION p FOR TABLE <distributed_locks>", check: "replication slots", level: doctor.OK, says: "none keeps more", fix: "DROP PUBLICATION p"},
	{change: func(p *patient) { p.limits.QueueUsage = 0 }, check: "notification queue", level: doctor.Warn, says: "0 % of the notification queue"},
	{hold: "LISTEN x; BEGIN; SELECT 1", check: "notification queue", level: doctor.OK, says: "0 % in use"},
	{hold: "LISTEN x; BEGIN; SELECT 1", check: "notifications", level: doctor.OK, says: "delivered"},

	// The sequence was set back, as after a restore. The highest token is a lock's or a waiter's.
	{set: fmt.Sprintf(addLocks, "0", 5) + "; SELECT setval(<tokens>, 3)", check: "tokens", level: doctor.Fail, says: "the sequence is at 3, behind 5"},
	{check: "tokens", level: doctor.OK, says: "highest 5, timeline 1"},
	{set: "UPDATE <distributed_locks> SET ticket = 1000 WHERE name = 'lock 1'; SELECT setval(<tokens>, 5)", check: "tokens", level: doctor.Fail, says: "behind 1000"},
	{set: "UPDATE <distributed_locks> SET ticket = 8796093022209 WHERE name = 'lock 2'", check: "tokens", level: doctor.Warn, says: "1 rows have tokens", fix: noLocks},
	{set: "REVOKE ALL ON SEQUENCE <fencing_tokens> FROM <role>", check: "tokens", level: doctor.Skip, says: "may not read the sequence"},
	{set: fmt.Sprintf(addLocks, "-1 hour", 1), check: "grant times", level: doctor.Fail, says: `lock, "lock 1", was granted 00:59:5`, fix: noLocks},
	{set: fmt.Sprintf(addLocks, "-1 hour", 1), check: "grant times", level: doctor.Fail, says: "pglock release NAME --force --reason TEXT", fix: noLocks},
	{set: fmt.Sprintf(addLocks, "49 hours", 999), check: "idle rows", level: doctor.OK, says: "999 names, 0 held, 0 expired and not released, 999 idle for 48:00:00, last pruned: never"},
	{set: `INSERT INTO <distributed_locks> (name, token, version, acquired_at, expires_at, holder)
		VALUES ('expired', 1, 1, clock_timestamp() - interval '3 days', clock_timestamp() - interval '50 hours', 'x')`,
		check: "idle rows", level: doctor.Warn, says: "1000 of 1000 names have been idle", fix: noLocks},
	{set: `INSERT INTO <distributed_locks> (name, token, version, acquired_at, expires_at)
		VALUES ('pglock:prune', 1, 1, clock_timestamp() - interval '90 minutes', '-infinity')`,
		check: "idle rows", level: doctor.OK, says: "last pruned: 01:30:0", fix: noLocks},
	{set: "INSERT INTO <lock_waiters> (name, client, expires_at) SELECT 'n', 'client ' || i, clock_timestamp() - interval '2 hours' FROM generate_series(1, 1000) AS i",
		check: "idle rows", level: doctor.Warn, says: "1000 queue rows of dead clients", fix: "TRUNCATE <lock_waiters>"},
	{set: "REVOKE SELECT ON <distributed_locks> FROM <role>", check: "lock table", level: doctor.Skip, says: "permission denied for table distributed_locks", fix: grantUser},
	{set: "REVOKE SELECT ON <lock_waiters> FROM <role>", check: "queue rows", level: doctor.Skip, says: "permission denied for table lock_waiters", fix: grantUser},
	{hold: "BEGIN; LOCK TABLE <distributed_locks>", change: func(p *patient) { p.limits.Scan = 300 * time.Millisecond }, check: "lock table", level: doctor.Warn, says: "could not be read in 300ms"},

	{set: "ALTER SYSTEM SET autovacuum = off" + reload, check: "autovacuum", level: doctor.Fail, says: "autovacuum is off", fix: "ALTER SYSTEM RESET autovacuum" + reload},
	{set: "ALTER SYSTEM SET track_counts = off" + reload, check: "autovacuum", level: doctor.Fail, says: "track_counts is off", fix: "ALTER SYSTEM RESET track_counts" + reload},
	{set: "ALTER TABLE <lock_waiters> SET (autovacuum_enabled = off)", check: "autovacuum", level: doctor.Fail, says: "lock_waiters"},

	{own: "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1", change: now, check: "transactions", level: doctor.Warn, says: `(idle in transaction, "")`},
	{own: "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1", check: "transactions", level: doctor.OK, says: "1 open, none for longer than 00:05:00"},
	{hold: "BEGIN; SELECT pg_current_xact_id()", change: now, check: "transactions", level: doctor.OK, says: "1 sessions of other roles can't be seen: GRANT pg_read_all_stats"},
	{set: "GRANT pg_read_all_stats TO <role>", hold: "BEGIN; SELECT pg_current_xact_id()", change: now, check: "transactions", level: doctor.Warn, says: "pg_terminate_backend", fix: "REVOKE pg_read_all_stats FROM <role>"},
	{set: "REVOKE SELECT ON pg_stat_activity FROM PUBLIC", check: "transactions", level: doctor.Skip, says: "permission denied for view pg_stat_activity", fix: "GRANT SELECT ON pg_stat_activity TO PUBLIC"},
	{set: "BEGIN; SELECT pg_current_xact_id(); PREPARE TRANSACTION 'left behind'", check: "prepared transactions", level: doctor.OK, says: "1, none for longer"},
	{change: now, check: "prepared transactions", level: doctor.Warn, says: "ROLLBACK PREPARED 'left behind'", fix: "ROLLBACK PREPARED 'left behind'"},

	{set: "ALTER SYSTEM SET fsync = off" + reload, check: "durability", level: doctor.Fail, says: "fsync is off", fix: "ALTER SYSTEM SET fsync = on" + reload},
	{set: "ALTER SYSTEM SET full_page_writes = off" + reload, check: "durability", level: doctor.Warn, says: "full_page_writes is off", fix: "ALTER SYSTEM SET full_page_writes = on" + reload},
	{set: "ALTER ROLE <role> SET synchronous_commit = off", check: "durability", level: doctor.Warn, says: "may lose the last transactions of DoTx"},
	{set: "ALTER ROLE <role> SET synchronous_commit = local; ALTER SYSTEM SET synchronous_standby_names = 'missing'" + reload, check: "durability", level: doctor.Warn, says: "a failover may lose the last grants",
		fix: "ALTER SYSTEM RESET synchronous_standby_names" + reload + "; ALTER ROLE <role> RESET synchronous_commit"},
	{set: "ALTER SYSTEM SET idle_in_transaction_session_timeout = 0" + reload, check: "idle timeout", level: doctor.OK, says: "a forgotten transaction",
		fix: "ALTER SYSTEM RESET idle_in_transaction_session_timeout" + reload},
	{check: "idle timeout", level: doctor.OK, says: "60000 ms"},

	{change: func(p *patient) { p.limits.Headroom = 1000 }, check: "connections", level: doctor.Warn, says: "of the server are in use"},
	{set: "ALTER ROLE <role> CONNECTION LIMIT 8", check: "connections", level: doctor.Warn, says: "of 8 connections of role", fix: "ALTER ROLE <role> CONNECTION LIMIT -1"},
	{set: "ALTER DATABASE <db> CONNECTION LIMIT 9", check: "connections", level: doctor.Warn, says: "of 9 connections of database", fix: "ALTER DATABASE <db> CONNECTION LIMIT -1"},
	{set: "REVOKE SELECT ON pg_stat_activity FROM PUBLIC", check: "connections", level: doctor.Skip, says: "permission denied", fix: "GRANT SELECT ON pg_stat_activity TO PUBLIC"},
}

// now makes each transaction a long one.
func now(p *patient) { p.limits.LongTransaction = 0 }

// TestFaults: on a server with good settings each check is ok, for a role with no rights but those of
// grant_user. It finds each fault, and it is ok again after the fault was fixed. Nothing that a role
// may not see, or that is locked, keeps the other checks from their results.
func TestFaults(t *testing.T) { //nolint:tparallel // the cases change one server in turn
	t.Parallel()
	server := pgtest.Server(t, testserver.Options{Durable: true, Settings: map[string]string{
		"idle_in_transaction_session_timeout": "60s", "max_prepared_transactions": "2"}})
	p := newPatient(t, server.URL())
	healthy := p.run()
	for _, f := range faults {
		name := f.set + f.hold + f.own
		t.Run(fmt.Sprintf("%s/%.40s", f.check, name), func(t *testing.T) {
			p := *p
			p.T, p.conn = t, p.conn.Copy()
			p.expect(f.check, doctor.OK, "")
			if f.set != "" {
				p.exec(f.set)
			}
			if f.hold != "" {
				defer p.session(false, f.hold).Close(t.Context())
			}
			if f.own != "" {
				defer p.session(true, f.own).Close(t.Context())
			}
			fixed := p
			fixed.conn = p.conn.Copy()
			if f.change != nil {
				f.change(&p)
			}
			r := p.expect(f.check, f.level, p.fill(f.says))
			if f.level == doctor.Skip || f.level == doctor.Warn {
				pgtest.Eventually(t, "the other checks have their results", func() bool { return len(p.run()) >= len(healthy)-4 })
			}
			_, remedy, cut := strings.Cut(r.Remedy, "run ")
			switch {
			case f.fix != "":
				p.exec(f.fix)
			case f.set == "" || f.level == doctor.OK:
				return
			case !cut:
				remedy = r.Remedy
				fallthrough
			default:
				p.exec(remedy)
			}
			fixed.expect(f.check, doctor.OK, "")
		})
	}
}

// TestHealthy: without a fault doctor draws no token and leaves no session.
func TestHealthy(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t, testserver.Options{Durable: true, Settings: map[string]string{"idle_in_transaction_session_timeout": "60s"}})
	p := newPatient(t, server.URL())
	if _, err := locktest.ClientOn(t, p.admin, pglock.WithSchema(p.schema)).Acquire(t.Context(), "held"); err != nil {
		t.Fatal(err)
	}
	lastValue := p.fill("SELECT last_value FROM <fencing_tokens>")
	before := locktest.Scan[int64](t, p.admin, lastValue)
	p.limits = doctor.DefaultLimits()
	p.limits.Deliver = 10 * time.Second
	checks := map[string]string{}
	for _, r := range p.run() {
		if r.Level != doctor.OK || checks[r.Check] != "" {
			t.Errorf("%+v", r)
		}
		checks[r.Check] = r.Found
	}
	want := []string{"autovacuum", "clock", "connection", "connections", "dead rows", "durability", "grant times", "grants", "idle rows", "idle timeout",
		"migrations", "notification queue", "notifications", "pooler", "prepared transactions", "replication slots", "rights", "schema", "server", "tokens", "transactions"}
	if got := slices.Sorted(maps.Keys(checks)); !slices.Equal(got, want) || !strings.HasPrefix(checks["idle rows"], "1 names, 1 held") {
		t.Errorf("got %v", checks)
	}
	if after := locktest.Scan[int64](t, p.admin, lastValue); after != before {
		t.Errorf("the sequence went from %d to %d", before, after)
	}
	pgtest.Eventually(t, "its sessions end", func() bool {
		return locktest.Scan[int](t, p.admin, "SELECT count(*) FROM pg_stat_activity WHERE usename = $1", p.conn.User) == 0
	})
}

// TestRights: each right that grant_user grants is looked for, and the remedy restores all of them.
func TestRights(t *testing.T) {
	t.Parallel()
	p := newPatient(t, pgtest.Database(t))
	rows, err := p.admin.Query(t.Context(), `
		SELECT a.privilege_type || ' on ' || c.relname, format('REVOKE %s ON %s FROM %s', a.privilege_type, c.oid::regclass, a.grantee::regrole)
		FROM pg_class AS c, aclexplode(c.relacl) AS a WHERE a.grantee = $1::text::regrole
		UNION ALL
		SELECT a.privilege_type || ' on ' || p.proname, format('REVOKE %s ON FUNCTION %s FROM %s', a.privilege_type, p.oid::regprocedure, a.grantee::regrole)
		FROM pg_proc AS p, aclexplode(p.proacl) AS a WHERE a.grantee = $1::text::regrole AND p.proname <> 'pglock_schema_version'`, p.fill("<role>"))
	locktest.OK(t, err)
	granted, err := pgx.CollectRows(rows, pgx.RowToStructByPos[struct{ Right, Revoke string }])
	if err != nil || len(granted) < 20 {
		t.Fatalf("grant_user grants %v, %v", granted, err)
	}
	for _, g := range granted {
		p.exec(g.Revoke)
	}
	p.exec("REVOKE ALL ON ALL FUNCTIONS IN SCHEMA <schema> FROM PUBLIC; GRANT EXECUTE ON FUNCTION <pglock_schema_version>() TO PUBLIC")
	r := p.expect("rights", doctor.Fail, "lacks")
	if want := fmt.Sprintf(" and %d more", len(granted)-3); !strings.HasSuffix(r.Found, want) {
		t.Errorf("%s, want %s", r.Found, want)
	}
	_, remedy, _ := strings.Cut(r.Remedy, "run ")
	p.exec(remedy)
	p.expect("rights", doctor.OK, "has those of a user")
}

// TestRoles: a writer, an owner and a reader need less than a user.
func TestRoles(t *testing.T) {
	t.Parallel()
	p := newPatient(t, pgtest.Database(t))
	p.exec("REVOKE ALL ON ALL TABLES IN SCHEMA <schema> FROM <role>; REVOKE ALL ON ALL FUNCTIONS IN SCHEMA <schema> FROM <role>, PUBLIC; GRANT EXECUTE ON FUNCTION <pglock_schema_version>() TO PUBLIC")
	for _, role := range []string{"reader", "writer", "owner"} {
		p.role = role
		r := p.expect("rights", doctor.Fail, "lacks")
		_, remedy, _ := strings.Cut(r.Remedy, "run ")
		if !strings.Contains(remedy, "grant_"+role) {
			t.Errorf("the remedy is %q", remedy)
		}
		p.exec(remedy)
		p.expect("rights", doctor.OK, "has those of a "+role)
		if role == "reader" {
			p.expect("tokens", doctor.OK, "the sequence is at")
			p.role = doctor.Screen
			p.expect("rights", doctor.OK, "has those of a reader")
		}
	}
	p.role = ""
	r := p.expect("rights", doctor.Fail, "grant_user")
	_, remedy, _ := strings.Cut(r.Remedy, "run ")
	p.exec(remedy)
	p.role = doctor.Screen
	p.expect("rights", doctor.OK, "has those of a user")
}

// TestDeadRows: a snapshot keeps the versions of updated rows. When it ends, VACUUM removes them, and
// leaves a large table.
func TestDeadRows(t *testing.T) {
	t.Parallel()
	p := newPatient(t, pgtest.Database(t))
	p.exec(fmt.Sprintf(addLocks, "0", 100))
	p.expect("dead rows", doctor.OK, "distributed_locks")
	reader := p.session(true, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1")
	for range 120 {
		locktest.Exec(t, p.admin, p.fill("UPDATE <distributed_locks> SET version = version + 1"))
	}
	p.admin.Reset() // a backend reports its statistics when it ends
	p.expect("dead rows", doctor.Warn, p.fill("VACUUM <distributed_locks>"))
	locktest.OK(t, reader.Close(t.Context()))
	p.exec("VACUUM <distributed_locks>")
	p.expect("dead rows", doctor.OK, "distributed_locks 0 dead")
	p.limits.BloatedSize = 100_000
	p.expect("dead rows", doctor.Warn, p.fill("VACUUM FULL <distributed_locks>"))
}

func TestPooler(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	p := newPatient(t, url)
	p.expect("pooler", doctor.OK, "none")
	for _, test := range []struct {
		mode    string
		level   doctor.Level
		says    string
		deliver doctor.Level
	}{
		{"session", doctor.OK, "session mode", doctor.OK},
		{"transaction", doctor.Warn, "pglock.WithListener", doctor.Warn},
	} {
		t.Run(test.mode, func(t *testing.T) {
			t.Parallel()
			behind := *p
			behind.T, behind.conn = t, pgtest.PoolOn(t, pgtest.Pooler(t, url, test.mode)).Config().ConnConfig
			behind.limits.Deliver = p.limits.Deliver / 5
			behind.expect("pooler", test.level, test.says)
			behind.expect("notifications", test.deliver, "")
			behind.expect("tokens", doctor.OK, "highest 0")
		})
	}
}

// TestStandby also has what a standby keeps on its primary.
func TestStandby(t *testing.T) {
	t.Parallel()
	primary := pgtest.Server(t, testserver.Options{Settings: map[string]string{"max_replication_slots": "5", "wal_level": "replica"}})
	p := newPatient(t, primary.URL())
	standby := pgtest.Standby(t, primary)
	onStandby := *p
	onStandby.admin = pgtest.PoolOn(t, standby.URL())
	config := onStandby.admin.Config().ConnConfig
	onStandby.conn = p.conn.Copy()
	onStandby.conn.Host, onStandby.conn.Port = config.Host, config.Port
	onStandby.expect("server", doctor.Fail, "target_session_attrs=read-write")
	onStandby.expect("rights", doctor.OK, "has those of a user")
	onStandby.expect("tokens", doctor.OK, "")
	onStandby.expect("queue rows", doctor.Skip, "run doctor on the primary")
	reader := onStandby
	reader.role = "reader"
	reader.expect("server", doctor.OK, "does not know who waits")

	// A long query on the standby keeps versions on the primary: first without a slot, then with one.
	p.limits.XIDs = 20
	const use = "DO $$ BEGIN FOR i IN 1..50 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$"
	p.exec("GRANT pg_read_all_stats TO <role>")
	onStandby.exec("ALTER SYSTEM SET hot_standby_feedback = on; ALTER SYSTEM SET wal_receiver_status_interval = '1s'" + reload)
	onStandby.session(false, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1")
	pgtest.Eventually(t, "the standby sends feedback", func() bool {
		return locktest.Scan[int](t, p.admin, "SELECT count(*) FROM pg_stat_replication WHERE backend_xmin IS NOT NULL") == 1
	})
	p.expect("transactions", doctor.OK, "")
	locktest.Exec(t, p.admin, use)
	p.expect("transactions", doctor.Warn, "hot_standby_feedback")

	p.exec("SELECT pg_create_physical_replication_slot('standby_slot')")
	p.expect("replication slots", doctor.OK, "1, none")
	onStandby.exec("ALTER SYSTEM SET primary_slot_name = 'standby_slot'" + reload)
	pgtest.Eventually(t, "the slot keeps versions", func() bool {
		return locktest.Scan[int](t, p.admin, "SELECT count(*) FROM pg_replication_slots WHERE xmin IS NOT NULL AND active") == 1
	})
	locktest.Exec(t, p.admin, use)
	p.expect("replication slots", doctor.Warn, "end long queries on its standby")
	locktest.OK(t, standby.Stop(testserver.Immediate))
	r := p.expect("replication slots", doctor.Warn, "pg_drop_replication_slot('standby_slot')")
	remedy, _, _ := strings.Cut(r.Remedy, ", ")
	p.exec(remedy)
	p.expect("replication slots", doctor.OK, "0, none")
}
