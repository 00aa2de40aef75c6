package doctor_test

import (
	"crypto/rand"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/migrations"
	"github.com/pglock/pglock-go/pglock/cmd/pglock/internal/doctor"
)

// patient is a database that doctor looks at.
type patient struct {
	*testing.T
	admin  *pgxpool.Pool // superuser
	conn   *pgx.ConnConfig
	schema string
	role   string
	limits doctor.Limits
}

// newPatient creates the tables in an empty database. Doctor connects as a role that has what
// grant_user grants.
func newPatient(t *testing.T, url string) *patient {
	t.Helper()
	return newPatientIn(t, url, `it's a "schema" `+rand.Text()[:10])
}

func newPatientIn(t *testing.T, url, schema string) *patient {
	t.Helper()
	admin := pgtest.PoolOn(t, url)
	locktest.OK(t, migrations.Up(t.Context(), admin, migrations.WithSchema(schema)))
	limits := doctor.DefaultLimits()
	limits.Connect, limits.Answer, limits.Scan, limits.Deliver = time.Minute, time.Minute, 30*time.Second, 10*time.Second // a slow machine
	return &patient{t, admin, pgtest.UserPool(t, admin, schema).Config().ConnConfig, schema, "", limits}
}

func (p *patient) run() []doctor.Result {
	p.Helper()
	return doctor.Run(p.Context(), doctor.Config{Conn: p.conn, Schema: p.schema, Role: p.role, Limits: p.limits})
}

// expect runs all checks until this one has a result with that level and the text, and returns it. A
// check that is ok must have no other result. An empty text and OK: no result may be another one.
func (p *patient) expect(check string, level doctor.Level, text string) (found doctor.Result) {
	p.Helper()
	var results []doctor.Result
	defer func() {
		if p.Failed() {
			p.Logf("%s: want %s with %q: got %+v", check, level, text, results)
		}
	}()
	pgtest.Eventually(p, check, func() bool {
		results = p.run()
		of := slices.DeleteFunc(slices.Clone(results), func(r doctor.Result) bool { return r.Check != check })
		if level == doctor.OK && slices.ContainsFunc(of, func(r doctor.Result) bool { return r.Level != level }) {
			return false
		}
		at := slices.IndexFunc(of, func(r doctor.Result) bool { return r.Level == level && strings.Contains(r.Found+": "+r.Remedy, text) })
		if at >= 0 {
			found = of[at]
		}
		return at >= 0 || level == doctor.OK && text == ""
	})
	for _, r := range results {
		if r.Level != doctor.OK && r.Remedy == "" {
			p.Errorf("%s: no remedy: %+v", r.Check, r)
		}
	}
	return found
}

// exec runs statements that a semicolon and a blank separate in one session of the superuser.
func (p *patient) exec(sql string) {
	p.Helper()
	conn := p.session(false, sql)
	locktest.OK(p, conn.Close(p.Context()))
}

// session runs statements in a session of the superuser, or of the role that doctor has, and leaves
// it open. It replaces <table> by the name of a table, and <role>, <user>, <db> and <schema>.
func (p *patient) session(asRole bool, sql string) *pgx.Conn {
	p.Helper()
	config := p.admin.Config().ConnConfig
	config.RuntimeParams["default_transaction_read_only"], config.RuntimeParams["synchronous_commit"] = "off", "local" // whatever a test sets
	if asRole {
		config = p.conn
	}
	conn, err := pgx.ConnectConfig(p.Context(), config)
	locktest.OK(p, err)
	p.Cleanup(func() { _ = conn.Close(p.Context()) })
	for statement := range strings.SplitSeq(p.fill(sql), "; ") {
		if _, err := conn.Exec(p.Context(), statement, pgx.QueryExecModeSimpleProtocol); err != nil {
			p.Fatalf("%s: %v", statement, err)
		}
	}
	return conn
}

func (p *patient) fill(sql string) string {
	schema := pgx.Identifier{p.schema}.Sanitize()
	replace := []string{"<role>", pgx.Identifier{p.conn.User}.Sanitize(), "<user>", "'" + p.conn.User + "'", "<db>", p.conn.Database, "<schema>", schema,
		"<tokens>", "'" + strings.ReplaceAll(schema, "'", "''") + ".fencing_tokens'"}
	for _, name := range []string{"distributed_locks", "lock_waiters", "once_keys", "fencing_secret", "fencing_epoch", "fencing_high_water",
		"fencing_tokens", "pglock_migrations", "locks_held", "bound_grants", "bind", "pglock_schema_version", "pglock_oldest_client"} {
		replace = append(replace, "<"+name+">", schema+"."+name)
	}
	return strings.NewReplacer(replace...).Replace(sql)
}
