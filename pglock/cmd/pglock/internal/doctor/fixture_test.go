package doctor_test

import (
	"crypto/rand"
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
	t      *testing.T
	admin  *pgxpool.Pool // superuser
	conn   *pgx.ConnConfig
	schema string
	limits doctor.Limits
}

// newPatient creates the tables in a database of its own on the shared server. Doctor connects as a
// role that has what grant_user grants.
func newPatient(t *testing.T) *patient {
	t.Helper()
	return patientAt(t, pgtest.Database(t))
}

// patientAt is newPatient on an empty database.
func patientAt(t *testing.T, url string) *patient {
	t.Helper()
	admin := pgtest.PoolOn(t, url)
	schema := `it's a "schema" ` + rand.Text()[:10]
	if err := migrations.Up(t.Context(), admin, migrations.WithSchema(schema)); err != nil {
		t.Fatal(err)
	}
	user := pgtest.UserPool(t, admin, schema)
	limits := doctor.DefaultLimits()
	limits.Connect, limits.Answer, limits.Scan, limits.Deliver = time.Minute, time.Minute, 30*time.Second, 10*time.Second // a slow machine
	return &patient{t, admin, user.Config().ConnConfig, schema, limits}
}

func (p *patient) run() []doctor.Result {
	p.t.Helper()
	return doctor.Run(p.t.Context(), doctor.Config{Conn: p.conn, Schema: p.schema, Limits: p.limits})
}

// expect runs all checks, and returns the result of this one with that level and the text. If there
// is none, it fails the test. A check that is ok must have no other result.
func (p *patient) expect(check string, level doctor.Level, text string) (found doctor.Result) {
	p.t.Helper()
	results, others := p.run(), 0
	for _, r := range results {
		if r.Level != doctor.OK && r.Remedy == "" {
			p.t.Errorf("%s: no remedy: %+v", r.Check, r)
		}
		switch {
		case r.Check != check:
		case r.Level == level && strings.Contains(r.Found+": "+r.Remedy, text):
			found = r
		default:
			others++
		}
	}
	if found.Check == "" || level == doctor.OK && others > 0 {
		p.t.Errorf("%s: want %s with %q: got %+v", check, level, text, results)
	}
	return found
}

func (p *patient) exec(sql string, args ...any) {
	p.t.Helper()
	locktest.Exec(p.t, p.admin, sql, args...)
}

func (p *patient) table(name string) string { return pgx.Identifier{p.schema, name}.Sanitize() }

func (p *patient) role() string { return pgx.Identifier{p.conn.User}.Sanitize() }

// session opens a session of the superuser, or of the role that doctor has.
func (p *patient) session(asRole bool) *pgx.Conn {
	p.t.Helper()
	config := p.admin.Config().ConnConfig
	if asRole {
		config = p.conn.Copy()
	}
	conn, err := pgx.ConnectConfig(p.t.Context(), config)
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = conn.Close(p.t.Context()) })
	return conn
}

// insertLocks adds free names whose last grant was that long ago.
func (p *patient) insertLocks(n int, ago time.Duration) {
	p.t.Helper()
	p.exec("INSERT INTO "+p.table("distributed_locks")+` (name, token, version, acquired_at, expires_at)
		SELECT 'lock ' || i, nextval('`+strings.ReplaceAll(p.table("fencing_tokens"), "'", "''")+`'), 1, clock_timestamp() - $2::float8 * interval '1 second', '-infinity'
		FROM generate_series(1, $1::int) AS i`, n, ago.Seconds())
}
