package runner_test

import (
	"fmt"
	"net/url"
	"strconv"
	"testing"

	"github.com/golang-migrate/migrate/v4/database"
	migratepgx "github.com/golang-migrate/migrate/v4/database/pgx/v5"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock/runner"
)

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
