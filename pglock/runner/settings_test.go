package runner_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock/runner"
)

// tables returns the tables of the migrations with their schemas and owners.
func (f *fixture) tables() string {
	f.Helper()
	return locktest.Scan[string](f.T, f.pool, `SELECT coalesce(string_agg(n.nspname || '.' || c.relname || CASE WHEN c.relowner = 'pg_monitor'::regrole THEN ' of another' ELSE '' END, ', ' ORDER BY c.relname), '')
		FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind = 'r' AND c.relname ~ '^t[0-9]$'`)
}

// TestSettingsEndWithTheFile: what a file sets does not reach the next one, so databases that were
// migrated at once and release by release are equal. The settings that the pool's hook makes are
// those of each file.
func TestSettingsEndWithTheFile(t *testing.T) {
	t.Parallel()
	hooked := func(f *fixture) *pgxpool.Pool {
		return pgtest.PoolOn(f.T, f.url, func(c *pgxpool.Config) {
			c.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
				_, err := conn.Exec(ctx, "SET search_path TO app, public")
				return err
			}
		})
	}
	const commit = "BEGIN; CREATE TABLE t1 (); COMMIT;"
	// PostgreSQL 19 knows no other literals than the standard ones.
	const escapes = "SELECT set_config(name, 'off', false) FROM pg_settings WHERE name = 'standard_conforming_strings' AND current_setting('server_version_num')::int < 190000;"
	for name, c := range map[string]struct {
		sql  string
		want string
		pool func(f *fixture) *pgxpool.Pool
	}{
		"search_path":           {"SET search_path TO app; CREATE TABLE t1 ();", "app.t1, public.t2", nil},
		"pg_dump's header":      {"SELECT pg_catalog.set_config('search_path', '', false); CREATE TABLE app.t1 ();", "app.t1, public.t2", nil},
		"role":                  {"CREATE TABLE t1 (); SET ROLE pg_monitor;", "public.t1, public.t2", nil},
		"session":               {"CREATE TABLE t1 (); SET SESSION AUTHORIZATION pg_monitor;", "public.t1, public.t2", nil},
		"quoting":               {"CREATE TABLE t1 (); SET bytea_output TO escape; " + escapes, "public.t1, public.t2", nil},
		"outside a transaction": {commit + "SET search_path TO app;", "public.t1, public.t2", nil},
		"role, outside":         {commit + "SET ROLE pg_monitor;", "public.t1, public.t2", nil},
		"hook":                  {"SET search_path TO public; CREATE TABLE t1 ();", "public.t1, app.t2", hooked},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			second := "CREATE TABLE t2 (); INSERT INTO public.journal SELECT 1 WHERE current_setting('role') <> 'none' OR current_user <> session_user"
			for how, releases := range map[string][][]string{"at once": {{c.sql, second}}, "by release": {{c.sql}, {c.sql, second}}} {
				f := newFixture(t)
				f.gate.Open()
				f.exec("CREATE SCHEMA app")
				pool := f.pool
				if c.pool != nil {
					pool = c.pool(f)
				}
				for _, texts := range releases {
					if err := runner.Run(t.Context(), source(texts...), pool, runner.WithVersionTable("public", "schema_migrations")); err != nil {
						t.Errorf("%s: %v", how, err)
					}
				}
				if got := f.tables(); got != c.want {
					t.Errorf("%s: tables %q, want %q", how, got, c.want)
				}
				f.want(2, false, 0)
			}
		})
	}
}

// TestRoleOfTheHookRecordsTheFile: the login has no rights, the pool's hook sets the role that owns
// the tables, and a file ends with another role.
func TestRoleOfTheHookRecordsTheFile(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.gate.Open()
	owner := pgtest.RoleOf(locktest.PoorRole(t, f.url, "owner of "+t.Name()))
	config := locktest.PoorRole(t, f.url, "login of "+t.Name()).Config()
	f.exec(fmt.Sprintf(`ALTER ROLE %[2]q NOINHERIT; GRANT %[1]q TO %[2]q; GRANT CREATE ON SCHEMA public TO %[1]q`, owner, config.ConnConfig.User))
	config.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, fmt.Sprintf("SET ROLE %q", owner))
		return err
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	ok(t, err)
	defer pool.Close()
	ok(t, runner.Run(t.Context(), source("CREATE TABLE t1 (); RESET ROLE", "CREATE TABLE t2 (); COMMIT; SET SESSION AUTHORIZATION DEFAULT; RESET ROLE", "CREATE TABLE t3 ()"), pool))
	if got := locktest.Scan[string](t, f.pool, "SELECT string_agg(DISTINCT tableowner::text, ', ') FROM pg_tables WHERE tablename ~ '^t[0-9]$'"); got != owner {
		t.Errorf("the tables have the owners %s", got)
	}
	f.want(3, false, 0)
}

// TestDeferredConstraintsSeeTheSettingsOfTheFile, and those of the connection come after them.
func TestDeferredConstraintsSeeTheSettingsOfTheFile(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.wantNil(f.start(source(`CREATE SCHEMA app; SET search_path TO app; CREATE TABLE t1 (); CREATE TABLE t2 ();
		CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO t2 DEFAULT VALUES; RETURN NULL; END';
		CREATE CONSTRAINT TRIGGER t AFTER INSERT ON t1 DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION f();
		INSERT INTO t1 DEFAULT VALUES;`)))
	if n := locktest.Scan[int](t, f.pool, "SELECT count(*) FROM app.t2"); n != 1 {
		t.Errorf("%d rows", n)
	}
}

// TestSettingsDoNotReachOtherClientsOfAPooler: the pooler lends the session to others afterwards.
func TestSettingsDoNotReachOtherClientsOfAPooler(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.gate.Open()
	through := pgtest.Pooler(t, f.url, "transaction", "default_pool_size = 1")
	exec := func(c *pgxpool.Config) {
		c.MaxConns, c.ConnConfig.DefaultQueryExecMode = 1, pgx.QueryExecModeExec
	}
	pool := pgtest.PoolOn(t, through, exec)
	err := runner.Run(t.Context(), source("CREATE SCHEMA app; SET search_path TO app; SET my.tenant TO 'a'; SET ROLE pg_monitor", "CREATE TABLE t2 ()"), pool,
		runner.WithLease(locktest.Client(t, f.url)))
	if err != nil {
		t.Fatal(err)
	}
	got := locktest.Scan[string](t, pool, "SELECT current_setting('search_path') || ' ' || current_setting('my.tenant', true) || ' ' || current_setting('role')")
	if got != `"$user", public  none` || f.tables() != "public.t2" {
		t.Errorf("another client finds %q, and the tables are %q", got, f.tables())
	}
}

// TestFileWithRollback has an error of its own: the file's transaction is also that of its record.
func TestFileWithRollback(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		sql   string
		left  int  // in the journal
		dirty bool // statements after the ROLLBACK may be committed
	}{
		"at its end":     {"BEGIN;" + note(2) + "ROLLBACK;", 0, false},
		"and more":       {note(2) + "ROLLBACK;" + note(1), 1, true},
		"and committed":  {"ROLLBACK; BEGIN;" + note(1) + "COMMIT; BEGIN; ROLLBACK;", 1, true},
		"and begun anew": {note(2) + "ROLLBACK AND CHAIN;" + note(2), 0, false},
		"abort":          {"ABORT", 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, before := range [][]string{nil, {"SELECT 1"}} { // the first file, and a later one
				f := newFixture(t)
				src := source(append(before, c.sql)...)
				version := len(before) + 1
				err := f.run(src)
				var failed *runner.MigrationError
				if !errors.As(err, &failed) || failed.Dirty != c.dirty || failed.Unknown || !strings.Contains(err.Error(), "has a ROLLBACK") ||
					strings.Contains(err.Error(), "nothing of it is left") == c.dirty || strings.Contains(err.Error(), "another session") {
					t.Errorf("the error is %v", err)
				}
				if n := locktest.Scan[int](t, f.pool, "SELECT count(*) FROM journal"); n != c.left {
					t.Errorf("%d rows are left", n)
				}
				if c.dirty {
					if err := f.run(src); !errors.Is(err, runner.ErrDirty) {
						t.Errorf("the next run: %v", err)
					}
					continue
				}
				f.wantNil(f.start(source(append(before, note(1))...)))
				f.want(version, false, 1)
				f.noLockLeft()
			}
		})
	}
	t.Run("control: to a savepoint", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		f.wantNil(f.start(source(note(1) + "SAVEPOINT a;" + note(2) + "ROLLBACK TO a;")))
		f.want(1, false, 1)
	})
}
