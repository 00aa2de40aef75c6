package doctor_test

import (
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/testserver"
	"github.com/pglock/pglock-go/pglock/cmd/pglock/internal/doctor"
)

// TestReadOnly: the remedy names the place of the setting, and works.
func TestReadOnly(t *testing.T) {
	t.Parallel()
	p := newPatient(t)
	for _, set := range []string{"ALTER ROLE " + p.role(), "ALTER DATABASE " + pgx.Identifier{p.conn.Database}.Sanitize(), "ALTER ROLE " + p.role() + " IN DATABASE " + pgx.Identifier{p.conn.Database}.Sanitize()} {
		p.exec(set + " SET default_transaction_read_only = on")
		r := p.expect("server", doctor.Fail, set+" RESET")
		p.exec(r.Remedy)
		p.expect("server", doctor.OK, "accepts writes")
	}
	p.conn = p.conn.Copy()
	p.conn.RuntimeParams["default_transaction_read_only"] = "on"
	p.expect("server", doctor.Fail, "connection string")
}

func TestOldVersion(t *testing.T) {
	t.Parallel()
	if r, old := doctor.CheckVersion("120022"); !old || r.Level != doctor.Fail {
		t.Errorf("12: %+v", r)
	}
	for _, good := range []string{"130000", "180001"} {
		if r, old := doctor.CheckVersion(good); old {
			t.Errorf("%s: %+v", good, r)
		}
	}
}

// TestStandby also has what a standby keeps on its primary.
func TestStandby(t *testing.T) {
	t.Parallel()
	primary := pgtest.Server(t, testserver.Options{Settings: map[string]string{"max_replication_slots": "5", "wal_level": "replica"}})
	p := patientAt(t, primary.URL())
	standby := pgtest.Standby(t, primary)
	admin := pgtest.PoolOn(t, standby.URL())
	onStandby := *p
	config, err := pgx.ParseConfig(standby.URL())
	if err != nil {
		t.Fatal(err)
	}
	onStandby.conn = p.conn.Copy()
	onStandby.conn.Host, onStandby.conn.Port = config.Host, config.Port
	pgtest.Eventually(t, locktest.Patience, "the standby has the role and the tables", func() bool {
		var exists bool
		err := admin.QueryRow(t.Context(), "SELECT to_regclass($1) IS NOT NULL AND EXISTS (SELECT FROM pg_roles WHERE rolname = $2 AND has_table_privilege(rolname, $1, 'INSERT'))",
			p.table("distributed_locks"), p.conn.User).Scan(&exists)
		return err == nil && exists
	})
	onStandby.expect("server", doctor.Fail, "target_session_attrs=read-write")

	// A long query on the standby keeps versions on the primary: first without a slot, then with one.
	p.limits.XIDs = 20
	p.exec("GRANT pg_read_all_stats TO " + p.role())
	use := func() {
		p.exec("DO $$ BEGIN FOR i IN 1..50 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$")
	}
	for _, sql := range []string{"ALTER SYSTEM SET hot_standby_feedback = on", "ALTER SYSTEM SET wal_receiver_status_interval = '1s'", "SELECT pg_reload_conf()"} {
		locktest.Exec(t, admin, sql)
	}
	reader, err := pgx.Connect(t.Context(), standby.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = reader.Close(t.Context()) }()
	if _, err := reader.Exec(t.Context(), "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1"); err != nil {
		t.Fatal(err)
	}
	pgtest.Eventually(t, locktest.Patience, "the standby sends feedback", func() bool {
		return locktest.Scan[int](t, p.admin, "SELECT count(*) FROM pg_stat_replication WHERE backend_xmin IS NOT NULL") == 1
	})
	p.expect("transactions", doctor.OK, "")
	use()
	p.expect("transactions", doctor.Warn, "hot_standby_feedback")

	p.exec("SELECT pg_create_physical_replication_slot('standby_slot')")
	p.expect("replication slots", doctor.OK, "1, none")
	locktest.Exec(t, admin, "ALTER SYSTEM SET primary_slot_name = 'standby_slot'")
	locktest.Exec(t, admin, "SELECT pg_reload_conf()")
	pgtest.Eventually(t, locktest.Patience, "the slot keeps versions", func() bool {
		return locktest.Scan[int](t, p.admin, "SELECT count(*) FROM pg_replication_slots WHERE xmin IS NOT NULL AND active") == 1
	})
	use()
	p.expect("replication slots", doctor.Warn, "end long queries on its standby")
	if err := standby.Stop(testserver.Immediate); err != nil {
		t.Fatal(err)
	}
	pgtest.Eventually(t, locktest.Patience, "the slot is not active", func() bool {
		return locktest.Scan[int](t, p.admin, "SELECT count(*) FROM pg_replication_slots WHERE NOT active") == 1
	})
	r := p.expect("replication slots", doctor.Warn, "pg_drop_replication_slot('standby_slot')")
	remedy, _, _ := strings.Cut(r.Remedy, ", ")
	p.exec(remedy)
	p.expect("replication slots", doctor.OK, "0, none")
}

// TestSettings: a private server with settings that are bad for locks.
func TestSettings(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t, testserver.Options{Settings: map[string]string{
		"autovacuum": "off", "track_counts": "off", "full_page_writes": "off", "max_connections": "12", "superuser_reserved_connections": "1",
		"max_prepared_transactions": "2", "idle_in_transaction_session_timeout": "0", "max_wal_senders": "2",
	}})
	p := patientAt(t, server.URL())
	p.expect("autovacuum", doctor.Fail, "autovacuum is off")
	p.expect("autovacuum", doctor.Fail, "track_counts is off")
	p.expect("durability", doctor.Fail, "fsync is off")
	p.expect("durability", doctor.Warn, "full_page_writes is off")
	p.expect("idle timeout", doctor.Warn, "ALTER DATABASE")
	p.exec("ALTER DATABASE postgres SET idle_in_transaction_session_timeout = '1min'")
	p.expect("idle timeout", doctor.OK, "60000 ms")
	p.expect("connections", doctor.Warn, "of the server are in use")
	p.limits.Headroom = 3
	p.expect("connections", doctor.OK, "of 11 in use")

	p.exec("ALTER ROLE " + p.role() + " SET synchronous_commit = off")
	p.expect("durability", doctor.Warn, "may lose the last transactions of DoTx")
	p.exec("ALTER ROLE " + p.role() + " SET synchronous_commit = local")
	for _, sql := range []string{"ALTER SYSTEM SET synchronous_standby_names = 'missing'", "SELECT pg_reload_conf()"} {
		if _, err := p.session(false).Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	pgtest.Eventually(t, locktest.Patience, "the setting is in force", func() bool {
		return locktest.Scan[string](t, p.admin, "SHOW synchronous_standby_names") == "missing"
	})
	p.expect("durability", doctor.Warn, "a failover may lose the last grants")
	if _, err := p.session(false).Exec(t.Context(), "ALTER SYSTEM RESET synchronous_standby_names"); err != nil {
		t.Fatal(err)
	}
	p.exec("SELECT pg_reload_conf()")

	// A prepared transaction.
	preparer := p.session(false)
	for _, sql := range []string{"SET synchronous_commit = local", "BEGIN", "SELECT pg_current_xact_id()", "PREPARE TRANSACTION 'left behind'"} {
		if _, err := preparer.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	p.expect("prepared transactions", doctor.OK, "1, none")
	p.limits.LongTransaction = time.Nanosecond
	r := p.expect("prepared transactions", doctor.Warn, "'left behind'")
	_, rollback, _ := strings.Cut(r.Remedy, " or ")
	if _, err := preparer.Exec(t.Context(), rollback); err != nil {
		t.Fatal(err)
	}
	p.expect("prepared transactions", doctor.OK, "0, none")
}

// TestConnectionLimits of the role and of the database.
func TestConnectionLimits(t *testing.T) {
	t.Parallel()
	p := newPatient(t)
	p.expect("connections", doctor.OK, "in use")
	p.exec("ALTER ROLE " + p.role() + " CONNECTION LIMIT 8")
	p.expect("connections", doctor.Warn, "connections of role")
	p.exec("ALTER ROLE " + p.role() + " CONNECTION LIMIT -1")
	p.exec("ALTER DATABASE " + pgx.Identifier{p.conn.Database}.Sanitize() + " CONNECTION LIMIT 9")
	p.expect("connections", doctor.Warn, "connections of database")
}
