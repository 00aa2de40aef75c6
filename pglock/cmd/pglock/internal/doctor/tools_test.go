package doctor_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/testserver"
	"github.com/pglock/pglock-go/migrations"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/cmd/pglock/internal/doctor"
	"github.com/pglock/pglock-go/pglock/once"
)

// everyTable runs a statement for each table of the schema: %s is its name.
func everyTable(statement string) string {
	return `DO $do$ DECLARE t text; BEGIN FOR t IN SELECT c.oid::regclass::text FROM pg_class AS c
		WHERE c.relnamespace = '<schema>'::regnamespace AND c.relkind = 'r' LOOP EXECUTE format('` + statement + `', t); END LOOP; END $do$`
}

// tools work on a whole database, and know nothing of pglock.
var tools = map[string]struct {
	before, after string // what a superuser runs before the tables are made, and while a client is open
	says          string // what Open, and doctor, say after it, with the remedy; empty: all works
	up            string // what Up says; empty: it succeeds
	remedy        string // SQL, after which all works
}{
	"change data capture was there first": {before: "CREATE PUBLICATION x FOR ALL TABLES"},
	"change data capture":                 {after: "CREATE PUBLICATION x FOR ALL TABLES"},
	"an event trigger that keeps a log": {before: `CREATE TABLE public.log (what text);; CREATE FUNCTION public.note() RETURNS event_trigger LANGUAGE plpgsql AS $f$ BEGIN
		INSERT INTO public.log SELECT object_identity FROM pg_event_trigger_ddl_commands(); END $f$;; CREATE EVENT TRIGGER x ON ddl_command_end EXECUTE FUNCTION public.note()`},
	"an event trigger that forbids changes": {
		before: `CREATE FUNCTION public.no() RETURNS event_trigger LANGUAGE plpgsql AS $f$ BEGIN RAISE EXCEPTION 'no % here', tg_tag; END $f$;;
			CREATE EVENT TRIGGER x ON ddl_command_start WHEN TAG IN ('CREATE VIEW') EXECUTE FUNCTION public.no()`,
		up: "no CREATE VIEW here", remedy: "DROP EVENT TRIGGER x",
	},
	"audit triggers on all tables": {after: `CREATE TABLE public.audit (what text, new jsonb);; CREATE FUNCTION public.audit() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $f$ BEGIN
		INSERT INTO public.audit SELECT tg_table_name || ' ' || tg_op, to_jsonb(NEW); RETURN NULL; END $f$;;` +
		everyTable("CREATE TRIGGER audit AFTER INSERT OR UPDATE OR DELETE ON %s FOR EACH ROW EXECUTE FUNCTION public.audit()")},
	"default privileges that give":      {before: "ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO PUBLIC;; ALTER DEFAULT PRIVILEGES GRANT ALL ON SEQUENCES TO PUBLIC"},
	"default privileges that take away": {before: "ALTER DEFAULT PRIVILEGES REVOKE ALL ON FUNCTIONS FROM PUBLIC;; ALTER DEFAULT PRIVILEGES REVOKE ALL ON TYPES FROM PUBLIC"},
	"a default tablespace":              {before: "ALTER DATABASE <db> SET default_tablespace = elsewhere"},
	"row security by an event trigger": {
		before: `CREATE FUNCTION public.secure() RETURNS event_trigger LANGUAGE plpgsql AS $f$ DECLARE t text; BEGIN
				FOR t IN SELECT object_identity FROM pg_event_trigger_ddl_commands() WHERE command_tag = 'CREATE TABLE' LOOP EXECUTE 'ALTER TABLE ' || t || ' ENABLE ROW LEVEL SECURITY'; END LOOP; END $f$;;
			CREATE EVENT TRIGGER x ON ddl_command_end WHEN TAG IN ('CREATE TABLE') EXECUTE FUNCTION public.secure()`,
		says: "row security hides all rows of", remedy: everyTable("ALTER TABLE %s DISABLE ROW LEVEL SECURITY"),
	},
	"row security on all tables": {after: everyTable("ALTER TABLE %s ENABLE ROW LEVEL SECURITY"),
		says: "row security hides all rows of", remedy: everyTable("ALTER TABLE %s DISABLE ROW LEVEL SECURITY")},
	"row security with policies":        {after: everyTable("ALTER TABLE %s ENABLE ROW LEVEL SECURITY") + ";;" + everyTable("CREATE POLICY all_rows ON %s USING (true) WITH CHECK (true)")},
	"a test suite truncates all tables": {after: everyTable("TRUNCATE %s RESTART IDENTITY CASCADE")},
	"a test suite deletes all rows":     {after: everyTable("DELETE FROM %s")},
	"tables are rewritten":              {after: "VACUUM FULL;; REINDEX SCHEMA <schema>"},
	"tables are moved":                  {after: everyTable("ALTER TABLE %s SET TABLESPACE elsewhere")},
	"all tables are logged":             {after: everyTable("ALTER TABLE %s SET LOGGED")},
}

// TestToolsOfOthers: what a tool does to all tables of a database either does no harm, or Up, Open
// and doctor name it, with the remedy. A guarded write, a key, pruning and a failover are tried
// after each.
func TestToolsOfOthers(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t, testserver.Options{Durable: true, Settings: map[string]string{"wal_level": "logical"}})
	admin := pgtest.PoolOn(t, server.URL())
	directory := locktest.Scan[string](t, admin, "SELECT current_setting('data_directory') || '/elsewhere'")
	locktest.Exec(t, admin, fmt.Sprintf("COPY (SELECT) TO PROGRAM 'mkdir %s'", directory))
	locktest.Exec(t, admin, fmt.Sprintf("CREATE TABLESPACE elsewhere LOCATION '%s'", directory))
	number := 0
	for name, tool := range tools {
		number++
		database := fmt.Sprintf("database_%d", number)
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			locktest.Exec(t, admin, "CREATE DATABASE "+database+" TEMPLATE template0")
			u, err := url.Parse(server.URL())
			locktest.OK(t, err)
			u.Path = "/" + database
			p := &patient{T: t, admin: pgtest.PoolOn(t, u.String()), schema: "pglock", limits: doctor.DefaultLimits()}
			p.limits.Connect, p.limits.Answer, p.limits.Scan, p.limits.Deliver = time.Minute, time.Minute, time.Minute, time.Minute
			p.conn = locktest.PoorRole(t, u.String(), "user of "+database).Config().ConnConfig
			p.asTool(tool.before)
			p.admin.Reset() // for new sessions
			up := func() error { return migrations.Up(t.Context(), p.admin, migrations.WithUser(p.conn.User)) }
			if err = up(); tool.up != "" {
				if err == nil || !strings.Contains(err.Error(), tool.up) {
					t.Fatalf("Up: %v, want %q", err, tool.up)
				}
				if _, remedy, dirty := strings.Cut(err.Error(), "`pglock migrate force "); dirty {
					version, _ := strconv.Atoi(remedy[:1])
					locktest.OK(t, migrations.Force(t.Context(), p.admin, version))
				}
				p.asTool(tool.remedy)
				err = up()
			}
			locktest.OK(t, err)
			var open *pglock.Client
			if tool.after != "" {
				open = locktest.ClientOn(t, p.pool())
				p.work(open)
				p.asTool(tool.after)
			}
			if tool.says != "" {
				for what, err := range map[string]error{"Open": p.open(), "Up": migrations.Up(t.Context(), p.pool())} {
					p.refused(what, err, tool.says)
				}
				if open != nil {
					if _, err := open.Acquire(t.Context(), "new"); !errors.Is(err, pglock.ErrPrivilege) || !strings.Contains(err.Error(), "disable row security") {
						t.Errorf("a client that was open: %v", err)
					}
				}
				p.expect("server", doctor.Fail, tool.says)
				p.asTool(tool.remedy)
			}
			locktest.OK(t, up())
			locktest.OK(t, migrations.Up(t.Context(), p.pool()))
			p.work(locktest.ClientOn(t, p.pool()))
			if open != nil {
				p.work(open)
			}
			p.exec("UPDATE <fencing_epoch> SET system = 1") // as a promotion does
			p.work(locktest.ClientOn(t, p.pool()))
			for _, r := range p.run() {
				if r.Level == doctor.Fail {
					t.Errorf("doctor: %+v", r)
				}
			}
			locktest.OK(t, migrations.Down(t.Context(), p.admin))
			locktest.OK(t, up())
		})
	}
}

// asTool runs statements that two semicolons separate as a superuser.
func (p *patient) asTool(sql string) {
	p.Helper()
	for statement := range strings.SplitSeq(p.fill(sql), ";;") {
		locktest.Exec(p, p.admin, statement)
	}
}

// work uses what a client has.
func (p *patient) work(c *pglock.Client) {
	p.Helper()
	locktest.OK(p, c.Do(p.Context(), "n", func(ctx context.Context, l *pglock.Lease) error {
		tx, err := p.pool().Begin(ctx)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
		_, err = tx.Exec(ctx, "SELECT pglock.bind($1, $2)", l.Name(), int64(l.Token()))
		return errors.Join(err, tx.Commit(ctx))
	}))
	if _, err := once.Do(p.Context(), c, rand.Text(), nil, func(context.Context, *pglock.Lease) (int, error) { return 1, nil }); err != nil {
		p.Errorf("a key: %v", err)
	}
	if _, err := c.Prune(p.Context(), time.Nanosecond); err != nil {
		p.Errorf("prune: %v", err)
	}
}

// TestRestoreWithoutRoles: pg_restore leaves functions open to PUBLIC that were granted to a role
// that is missing. Up closes them, and grants the rights to the roles of the new server.
func TestRestoreWithoutRoles(t *testing.T) {
	t.Parallel()
	from := pgtest.Database(t)
	newer := newPatientIn(t, from, "pglock") // grants to a role that the other server does not have
	dump := filepath.Join(t.TempDir(), "dump")
	if out, err := exec.CommandContext(t.Context(), pgtest.Program(t, "pg_dump"), "--format=custom", "--file", dump, "--dbname", from).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	server := pgtest.Server(t, testserver.Options{Durable: true})
	out, _ := exec.CommandContext(t.Context(), pgtest.Program(t, "pg_restore"), "--dbname", server.URL(), dump).CombinedOutput()
	if !strings.Contains(string(out), newer.conn.User) {
		t.Fatalf("control: pg_restore missed no role: %s", out)
	}
	p := *newer
	p.admin = pgtest.PoolOn(t, server.URL())
	p.conn = locktest.PoorRole(t, server.URL(), "new role").Config().ConnConfig
	const open = `SELECT count(*) FROM pg_proc AS p, aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) AS a
		WHERE p.pronamespace = 'pglock'::regnamespace AND a.grantee = 0 AND p.proname = ANY ('{guard,bind,advance,lift_sequence,lift_fencing_tokens,raise_pruned,above_pruned,once_claim}')`
	if locktest.Scan[int](t, p.admin, open) == 0 {
		t.Error("control: pg_restore has left no function open")
	}
	locktest.OK(t, migrations.Up(t.Context(), p.admin, migrations.WithUser("new role")))
	if n := locktest.Scan[int](t, p.admin, open); n > 0 {
		t.Errorf("%d functions are open to PUBLIC", n)
	}
	p.work(locktest.ClientOn(t, p.pool()))
	p.expect("grants", doctor.OK, "no role has more")
	p.expect("rights", doctor.OK, "has those of a user")
}
