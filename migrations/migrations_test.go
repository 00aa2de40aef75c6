package migrations_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/migrations"
)

// objects lists the objects of a schema except golang-migrate's own table.
func objects(t *testing.T, pool *pgxpool.Pool, name string) []string {
	t.Helper()
	return scanAll(t, pool, `
		SELECT c.relkind::text || ' ' || c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE n.nspname = $1 AND c.relname !~ '^pglock_migrations'
		UNION ALL
		SELECT 'function ' || p.proname FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace WHERE n.nspname = $1
		ORDER BY 1`, name)
}

// scanAll returns the rows of a query with one column of text.
func scanAll(t *testing.T, pool *pgxpool.Pool, sql string, args ...any) []string {
	t.Helper()
	rows, err := pool.Query(t.Context(), sql, args...)
	locktest.OK(t, err)
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	locktest.OK(t, err)
	return all
}

// TestUpRefusesUnsafeSequences: a trigger changes each sequence when it is created, as YugabyteDB raises
// CACHE.
func TestUpRefusesUnsafeSequences(t *testing.T) {
	t.Parallel()
	pool := pgtest.PoolOn(t, pgtest.Database(t))
	for change, text := range map[string]string{
		"CACHE 100":                    "sessions cache 100 values of the sequence",
		"INCREMENT 5 MINVALUE 1 CYCLE": "",
	} {
		locktest.Exec(t, pool, `CREATE OR REPLACE FUNCTION public.change() RETURNS event_trigger LANGUAGE plpgsql AS
			'BEGIN EXECUTE ''ALTER SEQUENCE '' || (SELECT object_identity FROM pg_event_trigger_ddl_commands() LIMIT 1) || '' `+change+`''; END'`)
		locktest.Exec(t, pool, "CREATE EVENT TRIGGER change ON ddl_command_end WHEN TAG IN ('CREATE SEQUENCE') EXECUTE FUNCTION public.change()")
		for range 2 { // the second time the tables are up to date, and Up makes no sequence
			err := migrations.Up(t.Context(), pool)
			if text != "" && (!errors.Is(err, schema.ErrSchema) || !strings.Contains(err.Error(), text)) || text == "" && err != nil {
				t.Errorf("%s: %v", change, err)
			}
			if strings.HasPrefix(change, "INCREMENT") {
				break
			}
		}
		locktest.OK(t, migrations.Down(t.Context(), pool))
		locktest.Exec(t, pool, "DROP EVENT TRIGGER change")
	}
}

// TestEveryLoggedTableHasAKey: a publication of all tables refuses changes of one that has none.
func TestEveryLoggedTableHasAKey(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	if keyless := scanAll(t, pool, `SELECT c.relname::text FROM pg_class AS c
		WHERE c.relnamespace = $1::text::regnamespace AND c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND c.relreplident = 'd'
		  AND NOT EXISTS (SELECT FROM pg_index AS i WHERE i.indrelid = c.oid AND i.indisprimary)`, schema.Quote(pgtest.Schema(t, pool))); len(keyless) > 0 {
		t.Errorf("tables without a primary key: %q", keyless)
	}
}

func TestUpAndDown(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	for _, name := range []string{pgtest.SchemaName(t), pgtest.SchemaName(t), `it's "quoted" %s pglock. ` + strconv.Itoa(os.Getpid())} {
		in := migrations.WithSchema(name)
		t.Cleanup(func() {
			_, _ = pool.Exec(context.Background(), "DROP SCHEMA IF EXISTS "+schema.Quote(name)+" CASCADE")
		})
		version := func(want int) {
			t.Helper()
			if v, err := migrations.Version(t.Context(), pool, in); v != want || err != nil {
				t.Errorf("%q: version %d, %v, want %d", name, v, err, want)
			}
		}
		version(0)
		if err := migrations.Down(t.Context(), pool, in); err != nil {
			t.Errorf("%q: Down without tables: %v", name, err)
		}
		for range 2 { // there and back, twice
			for range 2 { // the second does nothing
				if err := migrations.Up(t.Context(), pool, in); err != nil {
					t.Fatalf("%q: %v", name, err)
				}
			}
			version(schema.Version)
			if got := objects(t, pool, name); !slices.Contains(got, "r distributed_locks") || !slices.Contains(got, "function next_fencing_token") {
				t.Errorf("%q: %v", name, got)
			}
			var token, found int64
			if err := pool.QueryRow(t.Context(), "SELECT "+schema.Quote(name)+".next_fencing_token(), "+schema.Quote(name)+".pglock_schema_version()").Scan(&token, &found); err != nil || token != 1 || found != schema.Version {
				t.Errorf("%q: token %d, version %d, %v", name, token, found, err)
			}
			if err := migrations.Down(t.Context(), pool, in); err != nil {
				t.Fatalf("%q: %v", name, err)
			}
			version(0)
			if got := objects(t, pool, name); len(got) != 0 {
				t.Errorf("%q: Down left %v", name, got)
			}
		}
	}
	if path := locktest.Scan[string](t, pool, "SHOW search_path"); path != `"$user", public` {
		t.Errorf("the pool's search_path became %q", path)
	}
}

// TestSchemaVersionIsTheLastMigration: Open compares the constant, which must match the files.
func TestSchemaVersionIsTheLastMigration(t *testing.T) {
	t.Parallel()
	names, err := fs.Glob(migrations.FS, "*.up.sql")
	locktest.OK(t, err)
	last, err := strconv.Atoi(names[len(names)-1][:4])
	if err != nil || last != schema.Version || last != len(names) {
		t.Errorf("files %v, version %d, %v", names, schema.Version, err)
	}
}

// TestFilesLeaveNoSettings: all files of a call run on one connection, so what one of them sets
// must end with it. In the control, a SET reaches the next file.
func TestFilesLeaveNoSettings(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	name := pgtest.SchemaName(t)
	conn, err := pool.Acquire(t.Context())
	locktest.OK(t, err)
	defer conn.Release()
	run := func(sql string) (settings string) {
		t.Helper()
		err := conn.Conn().PgConn().Exec(t.Context(), "SET LOCAL search_path TO "+schema.Quote(name)+", pg_temp;\n"+sql).Close()
		locktest.OK(t, err)
		err = conn.QueryRow(t.Context(), `SELECT concat_ws(' ', current_user, session_user, current_setting('role'), string_agg(name || '=' || setting, ' ' ORDER BY name))
			FROM pg_settings WHERE source = 'session'`).Scan(&settings)
		locktest.OK(t, err)
		return settings
	}
	before := run("CREATE SCHEMA " + schema.Quote(name))
	up, err := fs.Glob(migrations.FS, "*.up.sql")
	locktest.OK(t, err)
	down, err := fs.Glob(migrations.FS, "*.down.sql")
	locktest.OK(t, err)
	slices.Reverse(down)
	for _, file := range slices.Concat(up, down) {
		text, err := fs.ReadFile(migrations.FS, file)
		locktest.OK(t, err)
		if after := run(string(text)); after != before {
			t.Errorf("%s: the settings were %s, and are %s", file, before, after)
		}
	}
	if after := run("SET lock_timeout = '7s'"); after == before {
		t.Error("control: the settings do not differ")
	}
	locktest.OK(t, conn.Conn().Close(t.Context()))
}

// upVariable makes the test binary a program that calls Up in that schema.
const upVariable = "PGLOCK_TEST_UP"

func TestMain(m *testing.M) {
	if name := os.Getenv(upVariable); name != "" {
		os.Exit(up(name))
	}
	pgtest.Main(m)
}

func up(name string) int {
	pool, err := pgxpool.New(context.Background(), os.Getenv("PGLOCK_TEST_UP_URL"))
	if err == nil {
		defer pool.Close()
		err = migrations.Up(context.Background(), pool, migrations.WithSchema(name))
	}
	if err != nil {
		os.Stderr.WriteString(err.Error())
		return 1
	}
	return 0
}

// TestTwentyProcessesCallUpAtOnce: one of them migrates.
func TestTwentyProcessesCallUpAtOnce(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	pool := pgtest.PoolOn(t, url)
	name := `Twenty "at once"`
	// The trigger counts how often the migration runs.
	if _, err := pool.Exec(t.Context(), `
		CREATE TABLE applied (tag text);
		CREATE FUNCTION note() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN
			INSERT INTO public.applied SELECT command_tag FROM pg_event_trigger_ddl_commands() WHERE object_identity LIKE '%.distributed_locks' AND command_tag = 'CREATE TABLE'; END $$;
		CREATE EVENT TRIGGER note ON ddl_command_end EXECUTE FUNCTION note()`); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			cmd := exec.CommandContext(t.Context(), os.Args[0])
			cmd.Env = append(os.Environ(), upVariable+"="+name, "PGLOCK_TEST_UP_URL="+url)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
	wg.Wait()
	if n := locktest.Scan[int](t, pool, "SELECT count(*) FROM applied"); n != 1 {
		t.Errorf("the migration was applied %d times", n)
	}
	if v, err := migrations.Version(t.Context(), pool, migrations.WithSchema(name)); err != nil || v != schema.Version {
		t.Errorf("version %d, %v", v, err)
	}
}

// TestPrivilegeErrorNamesTheMissingRight, and granting it is enough.
func TestPrivilegeErrorNamesTheMissingRight(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	role := "poor " + strconv.Itoa(os.Getpid())
	admin, poor := pgtest.PoolOn(t, url), locktest.PoorRole(t, url, role)

	err := migrations.Up(t.Context(), poor)
	var missing *migrations.PrivilegeError
	if !errors.As(err, &missing) || !errors.Is(err, migrations.ErrPrivilege) || missing.Right != "CREATE" || !strings.HasPrefix(missing.On, "DATABASE") || missing.Role != role {
		t.Errorf("without the schema: %v", err)
	}
	locktest.Exec(t, admin, "CREATE SCHEMA pglock")
	err = migrations.Up(t.Context(), poor)
	if !errors.As(err, &missing) || missing.Right != "CREATE" || missing.On != `SCHEMA "pglock"` {
		t.Errorf("in the schema: %v", err)
	}
	if got := objects(t, admin, "pglock"); len(got) != 0 {
		t.Errorf("the failed attempts left %v", got)
	}
	// The right that the error names is enough.
	locktest.Exec(t, admin, "GRANT "+missing.Right+" ON "+missing.On+" TO "+schema.Quote(role)+"; GRANT USAGE ON SCHEMA pglock TO "+schema.Quote(role))
	if err := migrations.Up(t.Context(), poor); err != nil {
		t.Errorf("with the right granted: %v", err)
	}
}

// TestUpToDateNeedsNoRights: a service calls Up at each start, as the role that it works with.
func TestUpToDateNeedsNoRights(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	admin, poor := pgtest.PoolOn(t, url), locktest.PoorRole(t, url, "reader "+strconv.Itoa(os.Getpid()))
	locktest.OK(t, migrations.Up(t.Context(), admin))
	if err := migrations.Up(t.Context(), poor); !errors.Is(err, migrations.ErrPrivilege) {
		t.Errorf("a role that may not even read the version: %v", err)
	}
	locktest.Exec(t, admin, "GRANT USAGE ON SCHEMA pglock TO PUBLIC; GRANT SELECT ON pglock.pglock_migrations TO PUBLIC")
	if err := migrations.Up(t.Context(), poor); err != nil {
		t.Errorf("up to date: %v", err)
	}
}

// TestNewerSchemaIsUnchanged by an earlier release. Up is content with one that serves it, grants rights in
// it, and refuses another one.
func TestNewerSchemaIsUnchanged(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	name := pgtest.Schema(t, pool)
	role := pgtest.RoleOf(pool)
	in := migrations.WithSchema(name)
	locktest.Exec(t, pool, "UPDATE "+schema.Quote(name)+".pglock_migrations SET version = 99")
	up := func() error { return migrations.Up(t.Context(), pool, in, migrations.WithReader(role)) }
	down := func() error { return migrations.Down(t.Context(), pool, in) }
	force := func() error { return migrations.Force(t.Context(), pool, schema.Version, in) }
	check := func(what string, call func() error, want error) {
		t.Helper()
		if err := call(); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", what, err, want)
		}
		if v, err := migrations.Version(t.Context(), pool, in); v != 99 && !errors.Is(err, migrations.ErrNewer) {
			t.Errorf("%s: version %d, %v", what, v, err)
		}
	}
	check("Up", up, nil)
	check("Down", down, migrations.ErrNewer)
	check("Force", force, migrations.ErrNewer)
	if v, err := migrations.Version(t.Context(), pool, in); v != 99 || err != nil {
		t.Errorf("version %d, %v", v, err)
	}
	oldest := "FUNCTION " + schema.Quote(name) + ".pglock_oldest_client()"
	for _, change := range []string{
		fmt.Sprintf("CREATE OR REPLACE %s RETURNS integer LANGUAGE sql AS 'SELECT %d'", oldest, schema.Version+1),
		"CREATE OR REPLACE " + oldest + " RETURNS integer LANGUAGE sql AS 'SELECT 1 + 1'",
		"DROP " + oldest,
	} {
		locktest.Exec(t, pool, change)
		for _, call := range []func() error{up, down, force} {
			check(change, call, migrations.ErrNewer)
		}
	}
}

// TestUpSaysWhatItWaitsFor after five seconds, and waits no longer than its context. It changes slog's
// default, so it is not parallel.
func TestUpSaysWhatItWaitsFor(t *testing.T) {
	pool := pgtest.Pool(t)
	name := pgtest.Schema(t, pool)
	locktest.OK(t, migrations.Down(t.Context(), pool, migrations.WithSchema(name)))
	tx, err := pool.Begin(t.Context())
	locktest.OK(t, err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err := tx.Exec(t.Context(), "LOCK TABLE "+schema.Quote(name)+".pglock_migrations IN SHARE UPDATE EXCLUSIVE MODE"); err != nil {
		t.Fatal(err)
	}
	logged := make(chan string, 10)
	before := slog.Default()
	t.Cleanup(func() { slog.SetDefault(before) })
	slog.SetDefault(slog.New(slog.NewTextHandler(writer(func(line []byte) { logged <- string(line) }), nil)))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- migrations.Up(ctx, pool, migrations.WithSchema(name)) }()
	session := fmt.Sprintf("session %d, role", tx.Conn().PgConn().PID())
	select { // Up can't return before the lock is free, unless it fails
	case err := <-done:
		t.Fatalf("Up: %v", err)
	case line := <-logged:
		if !strings.Contains(line, session) {
			t.Errorf("logged %q, want %q", line, session)
		}
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), session) {
		t.Errorf("Up, canceled: %v, want %q", err, session)
	}
	locktest.OK(t, tx.Rollback(t.Context()))
	if err := migrations.Up(t.Context(), pool, migrations.WithSchema(name)); err != nil {
		t.Errorf("Up, after the lock was free: %v", err)
	}
	if err := migrations.Up(t.Context(), pool, migrations.WithSchema("")); !errors.Is(err, migrations.ErrInvalidOption) {
		t.Errorf("no name: %v", err)
	}
}

type writer func(line []byte)

func (w writer) Write(line []byte) (int, error) { w(line); return len(line), nil }
