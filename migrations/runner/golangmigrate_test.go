package runner_test

import (
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"testing"
	"time"

	"github.com/golang-migrate/migrate/v4/database"
	migratepgx "github.com/golang-migrate/migrate/v4/database/pgx/v5"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/migrations/runner"
)

// TestWrapLocksItsVersionTable: runs on different schemas or version tables don't wait for each
// other, runs on the same one do, as with golang-migrate's own lock.
func TestWrapLocksItsVersionTable(t *testing.T) {
	t.Parallel()
	eachLock(t, func(t *testing.T, kind lockKind) {
		t.Helper()
		url, elsewhere := pgtest.Database(t), pgtest.Database(t)
		locktest.Exec(t, pgtest.PoolOn(t, url), `CREATE SCHEMA "odd ""one"`)
		held := wrapped(t, url, lockOptions(t, kind, url)...)
		runner.SetUnusedTimeout(held, time.Hour)
		if err := held.Lock(); err != nil {
			t.Fatal(err)
		}
		lock := func(url string, config migratepgx.Config, timeout time.Duration) error {
			t.Helper()
			opts := append(lockOptions(t, kind, url), runner.WithTimeout(timeout))
			return wrap(t, url, stockWith(t, url, &config), opts...).Lock()
		}
		for name, config := range map[string]migratepgx.Config{
			"schema":              {SchemaName: `odd "one`},
			"table":               {MigrationsTable: "other"},
			"quoted table":        {MigrationsTable: `"public"."third"`, MigrationsTableQuoted: true},
			"table in the schema": {MigrationsTable: "other", SchemaName: `odd "one`},
		} {
			if err := lock(url, config, locktest.Patience); err != nil {
				t.Errorf("another %s: %v", name, err)
			}
		}
		if err := lock(elsewhere, migratepgx.Config{}, locktest.Patience); err != nil {
			t.Errorf("another database: %v", err)
		}
		for name, config := range map[string]migratepgx.Config{
			"by default": {},
			"by name":    {SchemaName: "public", MigrationsTable: "schema_migrations", DatabaseName: "alias"},
			"quoted":     {MigrationsTable: `"public"."schema_migrations"`, MigrationsTableQuoted: true},
		} {
			if err := lock(url, config, 300*time.Millisecond); !errors.Is(err, runner.ErrNotAcquired) {
				t.Errorf("the same table, %s: %v", name, err)
			}
		}
		opts := append(kind.opts(t, url), runner.WithTimeout(300*time.Millisecond))
		if err := runner.Run(t.Context(), source("SELECT 1"), pgtest.PoolOn(t, url), opts...); !errors.Is(err, runner.ErrNotAcquired) {
			t.Errorf("Run on the same table: %v", err)
		}
		if err := held.Unlock(); err != nil {
			t.Error(err)
		}
	})
}

// TestOpenedDriverLocksItsOwnTable: the URL of Open names another version table.
func TestOpenedDriverLocksItsOwnTable(t *testing.T) {
	t.Parallel()
	database := pgtest.Database(t)
	d, hasty := wrapped(t, database, runner.WithTimeout(locktest.Patience)), wrapped(t, database, runner.WithTimeout(300*time.Millisecond))
	if err := d.Lock(); err != nil {
		t.Fatal(err)
	}
	for table, want := range map[string]error{"schema_migrations": runner.ErrNotAcquired, "other": nil} {
		opener := d
		if want != nil {
			opener = hasty
		}
		u, err := url.Parse(database)
		if err != nil {
			t.Fatal(err)
		}
		q := u.Query()
		q.Set("x-migrations-table", table)
		u.RawQuery = q.Encode()
		opened, err := opener.Open(u.String())
		if err != nil {
			t.Fatal(err)
		}
		if err := opened.Lock(); !errors.Is(err, want) {
			t.Errorf("opened with table %s: %v", table, err)
		}
		if err := opened.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestGolangMigrateKeyMatchesTheLibrary: its function, and what its driver locks.
func TestGolangMigrateKeyMatchesTheLibrary(t *testing.T) {
	t.Parallel()
	for _, names := range [][3]string{{"shop", "public", "schema_migrations"}, {"/shop", "public", "schema_migrations"}, {"", "", ""}, {"ü", "odd \"one", "t\x00"}} {
		text, err := database.GenerateAdvisoryLockId(names[0], names[1], names[2])
		if err != nil {
			t.Fatal(err)
		}
		want, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		if got := runner.GolangMigrateKey(names[0], names[1], names[2]); got != want {
			t.Errorf("%q: %d, want %d", names, got, want)
		}
	}
	dsn := pgtest.Database(t)
	pool := pgtest.PoolOn(t, dsn)
	name := pool.Config().ConnConfig.Database
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	u.Scheme = "pgx5"
	opened, err := (&migratepgx.Postgres{}).Open(u.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = opened.Close() }) // the test's end closes the server's side
	for what, c := range map[string]struct {
		driver database.Driver
		key    int64
	}{
		"by instance": {stock(t, dsn), runner.GolangMigrateKey(name, "public", "schema_migrations")},
		"by URL":      {opened, runner.GolangMigrateKey("/"+name, "public", "schema_migrations")},
	} {
		if err := c.driver.Lock(); err != nil {
			t.Fatal(err)
		}
		locked := locktest.Scan[[]string](t, pool, "SELECT array_agg(((classid::bigint << 32) | objid::bigint)::text) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 AND database = (SELECT oid FROM pg_database WHERE datname = current_database())")
		if fmt.Sprint(locked) != fmt.Sprint([]int64{c.key}) {
			t.Errorf("a driver %s locks %v, not %d", what, locked, c.key)
		}
		if err := c.driver.Unlock(); err != nil {
			t.Fatal(err)
		}
	}
}
