package doctor_test

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock/cmd/pglock/internal/doctor"
)

func TestSchema(t *testing.T) {
	t.Parallel()
	p := newPatient(t)
	p.expect("schema", doctor.OK, "version")
	for version, says := range map[string]string{"1": "pglock migrate up --schema", "99": "use a newer pglock"} {
		p.exec("CREATE OR REPLACE FUNCTION " + p.table("pglock_schema_version") + "() RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT " + version + "'")
		p.expect("schema", doctor.Fail, says)
	}
	p.exec("UPDATE " + p.table("pglock_migrations") + " SET dirty = true")
	p.expect("schema", doctor.Fail, "pglock migrate version")
	p.schema = "none"
	p.expect("schema", doctor.Fail, "pglock migrate up --schema none")
}

// TestRights: each right that grant_user grants is looked for, and the remedy restores all of them.
func TestRights(t *testing.T) {
	t.Parallel()
	p := newPatient(t)
	p.expect("rights", doctor.OK, "may acquire locks")
	rows, err := p.admin.Query(t.Context(), `
		SELECT a.privilege_type || ' on ' || c.relname, format('REVOKE %s ON %s FROM %s', a.privilege_type, c.oid::regclass, a.grantee::regrole)
		FROM pg_class AS c, aclexplode(c.relacl) AS a WHERE a.grantee = $1::text::regrole
		UNION ALL
		SELECT a.privilege_type || ' on ' || p.proname, format('REVOKE %s ON FUNCTION %s FROM %s', a.privilege_type, p.oid::regprocedure, a.grantee::regrole)
		FROM pg_proc AS p, aclexplode(p.proacl) AS a WHERE a.grantee = $1::text::regrole`, p.role())
	if err != nil {
		t.Fatal(err)
	}
	var right, sql string
	revoke := map[string]string{}
	if _, err := pgx.ForEachRow(rows, []any{&right, &sql}, func() error { revoke[right] = sql; return nil }); err != nil {
		t.Fatal(err)
	}
	if len(revoke) < 20 {
		t.Errorf("grant_user grants only %v", revoke)
	}
	for _, sql := range revoke {
		p.exec(sql)
	}
	p.exec("REVOKE ALL ON ALL FUNCTIONS IN SCHEMA " + strings.TrimSuffix(p.table(""), `.""`) + " FROM PUBLIC")
	p.expect("schema", doctor.Fail, "lacks EXECUTE on pglock_schema_version")
	p.exec("GRANT EXECUTE ON FUNCTION " + p.table("pglock_schema_version") + "() TO PUBLIC") // without it, nothing else is checked
	delete(revoke, "EXECUTE on pglock_schema_version")
	r := p.expect("rights", doctor.Fail, "lacks")
	for right := range revoke {
		if !strings.Contains(r.Found+",", right+",") {
			t.Errorf("it does not miss %s", right)
		}
	}
	_, remedy, _ := strings.Cut(r.Remedy, "run ")
	p.exec(remedy)
	p.expect("rights", doctor.OK, "may acquire locks")

	p.exec("REVOKE DELETE ON " + p.table("lock_waiters") + " FROM " + p.role())
	if r := p.expect("rights", doctor.Fail, "lacks"); !strings.HasSuffix(r.Found, "lacks DELETE on lock_waiters") {
		t.Errorf("got %+v", r)
	}
	p.exec(remedy)
	p.exec("REVOKE USAGE ON SCHEMA " + strings.TrimSuffix(p.table(""), `.""`) + " FROM " + p.role())
	r = p.expect("schema", doctor.Fail, "may not use schema")
	_, remedy, _ = strings.Cut(r.Remedy, "run ")
	p.exec(remedy)

	p.exec("REVOKE EXECUTE ON FUNCTION pg_notify(text, text) FROM PUBLIC") // in this database only
	p.expect("rights", doctor.Warn, "GRANT EXECUTE ON FUNCTION pg_notify")
	p.exec("GRANT EXECUTE ON FUNCTION pg_notify(text, text) TO PUBLIC")

	p.exec("ALTER TABLE " + p.table("distributed_locks") + " ENABLE ROW LEVEL SECURITY")
	p.expect("rights", doctor.Fail, "row security")
}

func TestPooler(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	p := patientAt(t, url)
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
			through := pgtest.PoolOn(t, pgtest.Pooler(t, url, test.mode))
			behind := *p
			behind.t, behind.conn = t, through.Config().ConnConfig
			behind.limits.Deliver = p.limits.Deliver / 5
			behind.expect("pooler", test.level, test.says)
			behind.expect("notifications", test.deliver, "")
		})
	}
}

func TestFullQueue(t *testing.T) {
	t.Parallel()
	if r, full := doctor.CheckQueue(0.6); !full || r.Level != doctor.Warn || !strings.Contains(r.Found, "60 %") {
		t.Errorf("%+v", r)
	}
	if r, full := doctor.CheckQueue(0.4); full {
		t.Errorf("%+v", r)
	}
	// A listener in a transaction keeps the queue. Its usage is read from the server.
	p := newPatient(t)
	listener := p.session(false)
	if _, err := listener.Exec(t.Context(), "LISTEN x; BEGIN; SELECT 1"); err != nil {
		t.Fatal(err)
	}
	if usage := locktest.Scan[float64](t, p.admin, "SELECT pg_notification_queue_usage()"); usage < 0 || usage > 0.5 {
		t.Errorf("usage %v", usage)
	}
	p.expect("notifications", doctor.OK, "delivered, 0 %")
}
