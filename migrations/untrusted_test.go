package migrations_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/golang-migrate/migrate/v4/database"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/migrations"
)

// attacker is a role with CREATE on the database, which wants to become a superuser.
type attacker struct {
	*testing.T
	admin, pool *pgxpool.Pool
	name, role  string // role is the quoted name
}

func newAttacker(t *testing.T, kind string) *attacker {
	t.Helper()
	url, name := pgtest.Database(t), kind+" attacker "+strconv.Itoa(os.Getpid())
	a := &attacker{t, pgtest.PoolOn(t, url), locktest.PoorRole(t, url, name), name, schema.Quote(name)}
	a.do(a.admin, "DO $$ BEGIN EXECUTE format('GRANT CREATE ON DATABASE %I TO %s', current_database(), "+schema.Literal(a.role)+"); END $$")
	return a
}

func (a *attacker) do(pool *pgxpool.Pool, statements ...string) {
	a.Helper()
	for _, s := range statements {
		if _, err := pool.Exec(a.Context(), strings.ReplaceAll(s, "ATTACKER", a.role)); err != nil {
			a.Fatalf("%s: %v", s, err)
		}
	}
}

// function returns a statement that creates a function, which makes the attacker a superuser if one
// calls it, and then returns what the caller expects.
func (a *attacker) function(signature, returns, result string) string {
	return "CREATE FUNCTION " + signature + " RETURNS " + returns + " LANGUAGE plpgsql AS $f$ BEGIN " +
		"IF (SELECT rolsuper FROM pg_catalog.pg_roles WHERE rolname OPERATOR(pg_catalog.=) current_user) THEN ALTER ROLE " + a.role + " SUPERUSER; END IF; RETURN " + result + "; END $f$"
}

// escalates reports whether the attacker is a superuser after the statements, which it rolls back.
func (a *attacker) escalates(statements ...string) (super bool) {
	a.Helper()
	tx, err := a.admin.Begin(a.Context())
	locktest.OK(a, err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	for _, s := range append(statements, "SELECT 1") {
		if _, err := tx.Conn().PgConn().Exec(a.Context(), s).ReadAll(); err != nil {
			a.Fatalf("%.80s: %v", s, err)
		}
	}
	if err := tx.QueryRow(a.Context(), "SELECT rolsuper FROM pg_catalog.pg_roles WHERE rolname = $1", a.name).Scan(&super); err != nil {
		a.Fatal(err)
	}
	return super
}

// files returns the statements of a tool that runs the files by itself in the schema.
func files(t *testing.T, name string) []string {
	t.Helper()
	all := []string{"SET LOCAL search_path TO " + schema.Quote(name)}
	names, err := fs.Glob(migrations.FS, "*.up.sql")
	for _, file := range names {
		text, readErr := fs.ReadFile(migrations.FS, file)
		err = errors.Join(err, readErr)
		all = append(all, string(text))
	}
	locktest.OK(t, err)
	return all
}

// TestP70_MigrationsRunNoCodeOfStrangers: another role has prepared the schema that a superuser is to
// migrate. Nothing runs, and the error names the remedy. The controls do by hand what a migration
// would do, and make the other role a superuser.
func TestP70_MigrationsRunNoCodeOfStrangers(t *testing.T) {
	t.Parallel()
	const format = "pglock.format(text, text, text)"
	const plain = "pg_catalog.format($1, VARIADIC ARRAY[$2, $3])"
	for name, test := range map[string]struct {
		prepare func(a *attacker)
		control func(a *attacker) []string // nil: none
		says    string
		remedy  string // then Up succeeds
	}{
		"it owns the schema": {
			prepare: func(a *attacker) { a.do(a.pool, "CREATE SCHEMA pglock", a.function(format, "text", plain)) },
			control: func(a *attacker) []string { return files(a.T, "pglock") },
			says:    `belongs to role`, remedy: "DROP SCHEMA pglock CASCADE",
		},
		"it has given the schema away": {
			prepare: func(a *attacker) {
				a.do(a.pool, "CREATE SCHEMA pglock", a.function(format, "text", plain))
				a.do(a.admin, "ALTER SCHEMA pglock OWNER TO CURRENT_USER")
			},
			control: func(a *attacker) []string { return files(a.T, "pglock") },
			says:    `DROP FUNCTION pglock.format(text,text,text)`, remedy: "DROP FUNCTION " + format,
		},
		"PUBLIC may create": {
			prepare: func(a *attacker) {
				a.do(a.admin, "CREATE SCHEMA pglock", "GRANT CREATE, USAGE ON SCHEMA pglock TO PUBLIC")
				a.do(a.pool, a.function(format, "text", plain))
			},
			control: func(a *attacker) []string { return files(a.T, "pglock") },
			says:    `REVOKE CREATE ON SCHEMA "pglock" FROM PUBLIC`,
			remedy:  "REVOKE CREATE ON SCHEMA pglock FROM PUBLIC; DROP FUNCTION " + format,
		},
		"an operator is left": {
			prepare: func(a *attacker) {
				a.do(a.admin, "CREATE SCHEMA pglock", "GRANT CREATE, USAGE ON SCHEMA pglock TO ATTACKER")
				a.do(a.pool, "CREATE SCHEMA own", a.function("own.f(name, name)", "text", "'x'"),
					"CREATE OPERATOR pglock.|| (FUNCTION = own.f, LEFTARG = name, RIGHTARG = name)")
				a.do(a.admin, "REVOKE CREATE ON SCHEMA pglock FROM ATTACKER")
			},
			control: func(*attacker) []string {
				return []string{"SET LOCAL search_path TO pglock", "SELECT current_schema() || current_schema()"}
			},
			says: "DROP OPERATOR pglock.||(name,name)", remedy: "DROP OPERATOR pglock.|| (name, name)",
		},
		"a view is left": {
			prepare: func(a *attacker) {
				a.do(a.admin, "CREATE SCHEMA pglock", "GRANT CREATE, USAGE ON SCHEMA pglock TO ATTACKER")
				a.do(a.pool, "CREATE SCHEMA own", a.function("own.f()", "bigint", "5"), "CREATE VIEW pglock.locks_held AS SELECT own.f() AS token")
				a.do(a.admin, "REVOKE CREATE ON SCHEMA pglock FROM ATTACKER")
			},
			control: func(*attacker) []string { return []string{"SELECT * FROM pglock.locks_held"} },
			says:    "DROP VIEW pglock.locks_held", remedy: "DROP VIEW pglock.locks_held",
		},
		"a view is the version table": {
			prepare: func(a *attacker) {
				a.do(a.pool, "CREATE SCHEMA pglock", a.function("pglock.f()", "bigint", "5"),
					"CREATE VIEW pglock.pglock_migrations AS SELECT pglock.f() AS version, false AS dirty")
			},
			control: func(*attacker) []string { return []string{"SELECT * FROM pglock.pglock_migrations"} },
			says:    "belongs to role", remedy: "DROP SCHEMA pglock CASCADE",
		},
		"the version table has its trigger": {
			prepare: func(a *attacker) {
				a.do(a.admin, "CREATE SCHEMA pglock", "GRANT CREATE, USAGE ON SCHEMA pglock TO ATTACKER")
				a.do(a.pool, "CREATE SCHEMA own", a.function("own.f()", "trigger", "NEW"),
					"CREATE TABLE pglock.pglock_migrations (version bigint NOT NULL PRIMARY KEY, dirty boolean NOT NULL)",
					"CREATE TRIGGER t BEFORE INSERT ON pglock.pglock_migrations FOR EACH ROW EXECUTE FUNCTION own.f()")
				a.do(a.admin, "REVOKE CREATE ON SCHEMA pglock FROM ATTACKER")
			},
			control: func(*attacker) []string { return []string{"INSERT INTO pglock.pglock_migrations VALUES (1, true)"} },
			says:    "DROP TABLE pglock.pglock_migrations", remedy: "DROP TABLE pglock.pglock_migrations",
		},
		"the tables' version is its function": {
			prepare: func(a *attacker) {
				a.do(a.pool, "CREATE SCHEMA pglock", a.function("pglock.pglock_schema_version()", "integer", strconv.Itoa(schema.Version)),
					"CREATE TABLE pglock.pglock_migrations (version bigint, dirty boolean)",
					"INSERT INTO pglock.pglock_migrations VALUES ("+strconv.Itoa(schema.Version)+", true)")
			},
			control: func(*attacker) []string { return []string{"SELECT pglock.pglock_schema_version()"} },
			says:    "belongs to role", remedy: "DROP SCHEMA pglock CASCADE",
		},
		"it has CREATE by default": {
			prepare: func(a *attacker) { a.do(a.admin, "ALTER DEFAULT PRIVILEGES GRANT ALL ON SCHEMAS TO ATTACKER") },
			says:    `REVOKE CREATE ON SCHEMA "pglock" FROM "`, remedy: "REVOKE CREATE ON SCHEMA pglock FROM ATTACKER",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newAttacker(t, name)
			test.prepare(a)
			if test.control != nil && !a.escalates(test.control(a)...) {
				t.Error("control: the attacker is no superuser after the same by hand")
			}
			_, _ = migrations.Version(t.Context(), a.admin)
			for call, err := range map[string]error{
				"Up":    migrations.Up(t.Context(), a.admin, migrations.WithUser(a.name)),
				"Force": migrations.Force(t.Context(), a.admin, 0),
			} {
				if !errors.Is(err, migrations.ErrUntrusted) || !strings.Contains(err.Error(), test.says) {
					t.Errorf("%s: %v, want %q", call, err, test.says)
				}
			}
			a.do(a.admin, test.remedy)
			if err := migrations.Up(t.Context(), a.admin); err != nil {
				t.Errorf("Up after the remedy: %v", err)
			}
			if a.escalates() {
				t.Error("the attacker has become a superuser")
			}
		})
	}
}

// TestUpTrustsItsMembers: a schema may belong to a role that can act as the migrating one.
func TestUpTrustsItsMembers(t *testing.T) {
	t.Parallel()
	a := newAttacker(t, "member")
	team := "team " + strconv.Itoa(os.Getpid())
	asTeam := locktest.PoorRole(t, a.admin.Config().ConnString(), team)
	a.do(a.admin, "CREATE SCHEMA pglock AUTHORIZATION ATTACKER", "GRANT CREATE, USAGE ON SCHEMA pglock TO "+schema.Quote(team))
	if err := migrations.Up(t.Context(), asTeam); !errors.Is(err, migrations.ErrUntrusted) {
		t.Errorf("the owner can't act as the role that migrates: %v", err)
	}
	a.do(a.admin, "GRANT "+schema.Quote(team)+" TO ATTACKER")
	if err := migrations.Up(t.Context(), asTeam); err != nil {
		t.Errorf("the owner is a member of the role that migrates: %v", err)
	}
}

// TestP70_NobodyInheritsRights: default privileges of the migrating role would grant others the key of
// the seals, the lock tables, and triggers on them. The control is a table that is made by hand.
func TestP70_NobodyInheritsRights(t *testing.T) {
	t.Parallel()
	a := newAttacker(t, "default")
	for _, kind := range []string{"TABLES", "SEQUENCES", "FUNCTIONS", "TYPES"} {
		a.do(a.admin, "ALTER DEFAULT PRIVILEGES GRANT ALL ON "+kind+" TO ATTACKER WITH GRANT OPTION")
	}
	a.do(a.admin, "ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO PUBLIC", "CREATE TABLE public.control ()")
	locktest.OK(t, migrations.Up(t.Context(), a.admin))
	if len(rights(t, a.admin, a.name, "public")) == 0 {
		t.Error("control: default privileges have no effect")
	}
	if got := rights(t, a.admin, a.name, "pglock"); len(got) != 0 {
		t.Errorf("the role has %v", got)
	}
	public := scanAll(t, a.admin, `SELECT c.relname || ': ' || x.privilege_type FROM pg_class AS c, aclexplode(c.relacl) AS x
		WHERE c.relnamespace = 'pglock'::regnamespace AND x.grantee = 0 ORDER BY 1`)
	if strings.Join(public, ", ") != "pglock_migrations: SELECT, protected_tables: SELECT" {
		t.Errorf("PUBLIC has %v", public)
	}
	// A column of such a type would keep its table from being changed or dropped.
	if types := scanAll(t, a.admin, "SELECT typname::text FROM pg_type WHERE typnamespace = 'pglock'::regnamespace AND typelem = 0 AND has_type_privilege('public', oid, 'USAGE')"); len(types) > 0 {
		t.Errorf("PUBLIC may use the types %v", types)
	}
}

// TestTheNextMigrationKeepsRights: what a migration changes and replaces keeps the rights that roles have, also those
// that default privileges name, and what it adds gives them none.
func TestTheNextMigrationKeepsRights(t *testing.T) {
	t.Parallel()
	a := newAttacker(t, "next")
	for _, kind := range []string{"TABLES", "SEQUENCES", "FUNCTIONS", "TYPES"} {
		a.do(a.admin, "ALTER DEFAULT PRIVILEGES GRANT ALL ON "+kind+" TO ATTACKER")
	}
	locktest.OK(t, migrations.Up(t.Context(), a.admin, migrations.WithUser(a.name)))
	before := rights(t, a.admin, a.name, "pglock")
	replace := scanAll(t, a.admin, "SELECT pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = 'pglock'::regnamespace AND proname = 'acquire'")
	locktest.OK(t, pgx.BeginFunc(t.Context(), a.admin, func(tx pgx.Tx) error {
		for _, statement := range append(replace,
			"SET LOCAL search_path TO pglock, pg_temp",
			"ALTER TABLE distributed_locks ADD COLUMN added text",
			"CREATE OR REPLACE VIEW protected_tables AS "+scanAll(t, a.admin, "SELECT pg_get_viewdef('pglock.protected_tables'::regclass)")[0],
			"CREATE FUNCTION added_function() RETURNS integer LANGUAGE sql AS 'SELECT 1'",
			"REVOKE EXECUTE ON FUNCTION added_function FROM PUBLIC",
			"CREATE TABLE added_table (n integer)",
			"CREATE SEQUENCE added_sequence",
			"SELECT pin_functions()") {
			if _, err := tx.Exec(t.Context(), statement); err != nil {
				return fmt.Errorf("%s: %w", statement, err)
			}
		}
		return nil
	}))
	if after := rights(t, a.admin, a.name, "pglock"); len(before) == 0 || !slices.Equal(before, after) {
		t.Errorf("the role had %v, and has %v", before, after)
	}
	if scanAll(t, a.admin, "SELECT has_table_privilege('public', 'pglock.protected_tables', 'SELECT')::text")[0] != "true" {
		t.Error("PUBLIC has lost a right that the migrations gave it")
	}
}

// TestP70_OperatorsBeforePgCatalog: a superuser whose search_path has a stranger's schema before pg_catalog migrates,
// with roles to grant rights to, so that there are rights to look at, and migrates again. The control compares two texts.
func TestP70_OperatorsBeforePgCatalog(t *testing.T) {
	t.Parallel()
	a := newAttacker(t, "operators")
	a.do(a.pool, "CREATE SCHEMA own", `CREATE DOMAIN own."char" AS text`)
	for _, kind := range []string{"text", "name", "oid", `pg_catalog."char"`} {
		a.do(a.pool, a.function("own.equal(a "+kind+", b "+kind+")", "boolean", "a OPERATOR(pg_catalog.=) b"),
			"CREATE OPERATOR own.= (FUNCTION = own.equal, LEFTARG = "+kind+", RIGHTARG = "+kind+")")
	}
	if !a.escalates("SET LOCAL search_path TO own, pg_catalog", "SELECT 'a'::text = 'b'::text") {
		t.Error("control: the attacker's operator is not called")
	}
	config := a.admin.Config()
	config.ConnConfig.RuntimeParams["search_path"] = "own, pg_catalog"
	admin, err := pgxpool.NewWithConfig(t.Context(), config)
	locktest.OK(t, err)
	defer admin.Close()
	for range 2 {
		locktest.OK(t, migrations.Up(t.Context(), admin, migrations.WithUser(a.name)))
		if a.escalates() {
			t.Fatal("Up has made the attacker a superuser")
		}
	}
	locktest.Exec(t, a.admin, "DELETE FROM pglock.pglock_migrations") // the version is found by the functions
	locktest.OK(t, migrations.Up(t.Context(), admin))
	if a.escalates() {
		t.Error("Up without a record has made the attacker a superuser")
	}
}

// TestP70_GrantsRunNoCodeOfStrangers: the grant functions call no function that another role has left
// in their schema. The control is the same expression with that schema in the search_path.
func TestP70_GrantsRunNoCodeOfStrangers(t *testing.T) {
	t.Parallel()
	a := newAttacker(t, "grants")
	locktest.OK(t, migrations.Up(t.Context(), a.admin))
	a.do(a.admin, "GRANT CREATE, USAGE ON SCHEMA pglock TO ATTACKER")
	a.do(a.pool, a.function("pglock.quote_ident(name)", "text", "'pglock'"), a.function("pglock.format(text, name, text)", "text", "'SELECT 1'"),
		a.function("pglock.format(text, text)", "text", "'SELECT 1'"), a.function("pglock.format(text, text, text)", "text", "'SELECT 1'"))
	if !a.escalates("SET LOCAL search_path TO pglock", "SELECT quote_ident(current_schema())") {
		t.Error("control: the attacker's function is not called")
	}
	for _, grant := range []string{"grant_user", "grant_writer", "grant_owner"} {
		for _, path := range []string{"public", "pglock"} {
			if a.escalates("SET LOCAL search_path TO "+path, "SELECT pglock."+grant+"("+schema.Literal(a.name)+"::text)") {
				t.Errorf("%s with the search_path %s has made the attacker a superuser", grant, path)
			}
		}
	}
}

// TestP70_StrangersDoNotStopUp: roles that may only log in can hold any advisory lock. The control is
// the lock of the version table, which only a role that may change it can hold.
func TestP70_StrangersDoNotStopUp(t *testing.T) {
	t.Parallel()
	a := newAttacker(t, "blocking")
	tx, err := a.pool.Begin(t.Context())
	locktest.OK(t, err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	for _, key := range []string{"hashtextextended('pglock migrations of ' || 'pglock', 0)", golangMigrateKey(t, a.admin, "pglock")} {
		if _, err := tx.Exec(t.Context(), "SELECT pg_advisory_xact_lock("+key+")"); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), pgtest.Patience)
	defer cancel()
	if err := migrations.Up(ctx, a.admin); err != nil {
		t.Errorf("Up beside a role that holds advisory locks: %v", err)
	}
	a.do(a.admin, "GRANT USAGE ON SCHEMA pglock TO ATTACKER", "GRANT SELECT ON pglock.pglock_migrations TO ATTACKER")
	if _, err := a.pool.Exec(t.Context(), "LOCK TABLE pglock.pglock_migrations IN SHARE UPDATE EXCLUSIVE MODE"); err == nil {
		t.Error("a reader of the version can lock it")
	}
}

// golangMigrateKey returns the key of the advisory lock that golang-migrate's own driver uses.
func golangMigrateKey(t *testing.T, pool *pgxpool.Pool, name string) string {
	t.Helper()
	key, err := database.GenerateAdvisoryLockId(pool.Config().ConnConfig.Database, name, "pglock_migrations")
	locktest.OK(t, err)
	return key
}

// TestUpCallsNoFunctionOfAStranger when the tables are up to date, which it allows in a schema of another role.
func TestUpCallsNoFunctionOfAStranger(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	admin := pgtest.PoolOn(t, url)
	role := "stranger " + strconv.Itoa(os.Getpid())
	locktest.PoorRole(t, url, role)
	locktest.OK(t, migrations.Up(t.Context(), admin))
	locktest.Exec(t, admin, "ALTER SEQUENCE pglock.fencing_tokens CACHE 100") // unsafe_server() says so
	if err := migrations.Up(t.Context(), admin); !errors.Is(err, schema.ErrSchema) {
		t.Errorf("control: %v", err)
	}
	locktest.Exec(t, admin, "ALTER SCHEMA pglock OWNER TO "+schema.Quote(role))
	locktest.OK(t, migrations.Up(t.Context(), admin))
	locktest.Exec(t, admin, "ALTER SCHEMA pglock OWNER TO CURRENT_USER")
}
