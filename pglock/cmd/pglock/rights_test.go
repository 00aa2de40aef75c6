//go:build unix

package main

import (
	"crypto/rand"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
)

// team is a database with a role that owns the tables and a role that uses locks. Neither is a
// superuser.
type team struct {
	*cli
	owner, user *cli
	role        string // the user's name, which always needs quotes
}

func newTeam(t *testing.T) *team {
	t.Helper()
	url := pgtest.Database(t)
	admin := bareCLI(t)
	admin.pool = pgtest.PoolOn(t, url)
	admin.set("PGLOCK_DATABASE_URL", url)
	suffix := strings.ToLower(rand.Text())
	as := func(role string) *cli {
		t.Helper()
		locktest.PoorRole(t, url, role)
		c := bareCLI(t)
		u := mustParse(t, url)
		u.User = nil
		c.set("PGLOCK_DATABASE_URL", u.String())
		c.set("PGUSER", role)
		c.set("PGPASSWORD", "poor")
		return c
	}
	role := "it's a user " + suffix
	return &team{cli: admin, owner: as("owner " + suffix), user: as(role), role: role}
}

// failsWith checks that pglock exits with 69 and that stderr matches, and returns the groups of the
// match.
func (c *cli) failsWith(pattern string, args ...string) []string {
	c.t.Helper()
	r := c.expect(statusUnavailable, args...)
	match := regexp.MustCompile(pattern).FindStringSubmatch(strings.TrimSpace(r.stderr))
	if match == nil || r.stdout != "" {
		c.t.Fatalf("%q: got %+v, want %s", args, r, pattern)
	}
	return match
}

// TestAMigrationRole: two roles set up an empty database and acquire a lock. Each step is the
// remedy in the error of the step before.
func TestAMigrationRole(t *testing.T) {
	t.Parallel()
	m := newTeam(t)
	try := []string{"run", "n", "--", "sh", "-c", "echo ran"}

	grant := m.owner.failsWith(`missing privilege: .* lacks CREATE on DATABASE .*: (GRANT CREATE ON DATABASE .*), or let`, "migrate", "up")
	locktest.Exec(t, m.pool, grant[1])
	m.owner.expect(0, "migrate", "up")

	m.user.failsWith("missing privilege in schema", try...)
	m.user.failsWith(`let the owner of the tables run: SELECT "pglock".grant_user\('it''s a user `, "migrate", "up")
	command := m.user.failsWith(`or: (pglock migrate up .*)$`, try...)
	for range 2 { // the second time there is nothing to do
		r := m.owner.sh(command[1]).wait()
		if r.status != 0 || !strings.Contains(r.stdout, "(nothing to do)\n") || !strings.Contains(r.stdout, `role "`+m.role+`" may acquire locks`) {
			t.Errorf("%s: got %+v", command[1], r)
		}
	}
	if r := m.user.expect(0, try...); r.stdout != "ran\n" || r.stderr != "" {
		t.Errorf("got %+v", r)
	}
	if r := m.user.expect(0, "migrate", "up"); !strings.Contains(r.stdout, "(nothing to do)") {
		t.Errorf("got %+v", r)
	}
	m.user.failsWith("missing privilege", "migrate", "down", "--yes")
	m.user.failsWith(`untrusted schema: schema "pglock" belongs to role "owner .*: migrate as that role`, "migrate", "up", "--grant-writer", "pg_monitor")
}

// TestUpCreatesAndGrantsAtOnce: one command creates the tables and grants to roles of both kinds, and
// another one to PUBLIC.
func TestUpCreatesAndGrantsAtOnce(t *testing.T) {
	t.Parallel()
	m := newTeam(t)
	r := m.expect(0, "migrate", "up", "--grant-user", m.role, "--grant-writer", "pg_monitor")
	if lines := strings.Split(r.stdout, "\n"); len(lines) != 4 || !strings.Contains(lines[0], "(migrated from version 0)") ||
		!strings.HasSuffix(lines[1], "may acquire locks and write as their holder") || !strings.HasSuffix(lines[2], "may write as a holder") {
		t.Errorf("got %+v", r)
	}
	m.user.expect(0, "run", "n", "--", "true")
	if !locktest.Scan[bool](t, m.pool, "SELECT has_schema_privilege('pg_monitor', 'pglock', 'USAGE') AND NOT has_table_privilege('pg_monitor', 'pglock.distributed_locks', 'SELECT')") {
		t.Error("a writer has no right on the schema, or one on the locks")
	}
	// Row security has the SQLSTATE of a missing right, and no grant helps.
	locktest.Exec(t, m.pool, "ALTER TABLE pglock.distributed_locks ENABLE ROW LEVEL SECURITY; CREATE POLICY looks ON pglock.distributed_locks FOR SELECT USING (true)")
	if r := m.user.expect(statusUnavailable, "run", "new", "--", "true"); !strings.Contains(r.stderr, "`pglock doctor` has the statement") || strings.Contains(r.stderr, "--grant-user") {
		t.Errorf("got %+v", r)
	}
	locktest.Exec(t, m.pool, "ALTER TABLE pglock.distributed_locks DISABLE ROW LEVEL SECURITY")
	m.owner.failsWith("missing privilege", "run", "n", "--", "true")
	m.expect(0, "migrate", "up", "--grant-user", "public")
	m.owner.expect(0, "run", "n", "--", "true")
	if r := m.expect(statusUsage, "migrate", "up", "--grant-user", "no such role"); !strings.Contains(r.stderr, "no such role") {
		t.Errorf("got %+v", r)
	}
}

// TestNoCommandRunsCodeOfAStranger: a role has made the schema first, and its functions make it a
// superuser when a superuser calls them. No command calls one. The control is a superuser who says
// that it trusts the role.
func TestNoCommandRunsCodeOfAStranger(t *testing.T) {
	t.Parallel()
	team := newTeam(t)
	owner := team.owner.env[slices.IndexFunc(team.owner.env, func(v string) bool { return strings.HasPrefix(v, "PGUSER=") })][len("PGUSER="):]
	locktest.Exec(t, team.pool, "DO $$ BEGIN EXECUTE format('GRANT CREATE ON DATABASE %I TO %I', current_database(), '"+owner+"'); END $$")
	team.owner.expect(0, "migrate", "up")
	for _, function := range []string{"pglock_schema_version() RETURNS integer", "unsafe_server() RETURNS text", "lift_fencing_tokens(evidence text DEFAULT NULL) RETURNS bigint"} {
		locktest.Exec(t, team.pool, "CREATE OR REPLACE FUNCTION pglock."+function+` LANGUAGE plpgsql AS $f$ BEGIN
			SET ROLE NONE; ALTER ROLE "`+owner+`" SUPERUSER; RETURN NULL; END $f$`)
	}
	escalated := func() bool {
		return locktest.Scan[bool](t, team.pool, "SELECT rolsuper FROM pg_roles WHERE rolname = $1", owner)
	}
	for _, command := range [][]string{
		{"ls"}, {"show", "n"}, {"run", "n", "--", "true"}, {"hold", "n"}, {"lead", "n", "--", "true"}, {"release", "n", "--force", "--reason", "a test"}, {"once", "ls"}, {"once", "show", "k"}, {"once", "resolve", "k", "--happened"}, {"watch", "n"}, {"ui"},
	} {
		says := regexp.QuoteMeta(`schema "pglock" belongs to role "`+owner+`", whose code could do all that the superuser`) + ".*role=" + owner
		team.failsWith(says, command...)
	}
	if r := team.expect(1, "doctor"); !strings.Contains(r.stdout, "fail  schema") || !strings.Contains(r.stdout, "belongs to role") || strings.Contains(r.stdout, "tokens") {
		t.Errorf("doctor: %+v", r)
	}
	if escalated() {
		t.Error("a command has made the owner of the schema a superuser")
	}
	team.set("PGOPTIONS", "-c role="+strings.ReplaceAll(owner, " ", `\ `))
	team.run("ls")
	if !escalated() {
		t.Error("control: with its trust, the owner is no superuser")
	}
}
