package pglock_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/conformance"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/migrations"
	"github.com/pglock/pglock-go/pglock"
)

// hostileSettings are settings of a role that change how statements are read, planned, answered or
// committed. None of them may change the effect of a lock.
var hostileSettings = map[string]string{
	"standard_conforming_strings":         "off",
	"escape_string_warning":               "on",
	"client_encoding":                     "LATIN1",
	"client_min_messages":                 "log",
	"DateStyle":                           "SQL, DMY",
	"IntervalStyle":                       "sql_standard",
	"TimeZone":                            "Pacific/Kiritimati",
	"bytea_output":                        "escape",
	"extra_float_digits":                  "-15",
	"array_nulls":                         "off",
	"transform_null_equals":               "on",
	"quote_all_identifiers":               "on",
	"search_path":                         "",
	"row_security":                        "off",
	"plan_cache_mode":                     "force_generic_plan",
	"enable_indexscan":                    "off",
	"enable_tidscan":                      "off",
	"enable_nestloop":                     "off",
	"enable_material":                     "off",
	"jit":                                 "off", // with the plans above it would compile each statement
	"default_transaction_isolation":       "repeatable read",
	"default_transaction_deferrable":      "on",
	"synchronous_commit":                  "off",
	"lock_timeout":                        "5s",
	"statement_timeout":                   "30s",
	"idle_in_transaction_session_timeout": "10s",
	"idle_session_timeout":                "2s",
	"transaction_timeout":                 "20s",
	"default_table_access_method":         "heap",
	"lc_messages":                         "C",
	"work_mem":                            "64kB",
	"max_parallel_workers_per_gather":     "4",
	"parallel_setup_cost":                 "0",
	"min_parallel_table_scan_size":        "0",
	"from_collapse_limit":                 "1",
	"join_collapse_limit":                 "1",
}

// hostileRole returns a pool for the schema as a role with those of the settings that this server
// knows.
func hostileRole(t *testing.T, f fixture, opts ...func(*pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	user := pgtest.UserPool(t, f.pool, f.schema)
	for name, setting := range hostileSettings {
		if value[int](f, "SELECT count(*) FROM pg_settings WHERE lower(name) = lower($1)", name) == 0 {
			continue
		}
		if name != "DateStyle" { // a list
			setting = "'" + setting + "'"
		}
		f.sql(fmt.Sprintf("ALTER ROLE %s SET %s = %s", pgx.Identifier{pgtest.RoleOf(user)}.Sanitize(), name, setting))
	}
	config := user.Config()
	for _, o := range opts {
		o(config)
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

func openWith(t *testing.T, f fixture, pool *pgxpool.Pool) *pglock.Client {
	t.Helper()
	c, err := pglock.Open(t.Context(), pool, pglock.WithSchema(f.schema))
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	t.Cleanup(func() {
		if err := c.Close(context.Background()); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return c
}

// TestConformanceOfARoleWithHostileSettings runs the suite as a role with unusual settings.
func TestConformanceOfARoleWithHostileSettings(t *testing.T) {
	t.Parallel()
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeSimpleProtocol} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			conformance.Run(t, func(t *testing.T) func() conformance.Locker {
				t.Helper()
				f := newFixture(t)
				pool := hostileRole(t, f, func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = mode })
				return func() conformance.Locker { return leasesOf(openWith(t, f, pool)) }
			})
		})
	}
}

// TestALeasesLifeInEachEncoding runs all statements with a non-ASCII name, as a role with another
// client_encoding, in databases that are not in UTF-8.
func TestALeasesLifeInEachEncoding(t *testing.T) {
	t.Parallel()
	for _, encoding := range []string{"UTF8", "SQL_ASCII", "LATIN1"} {
		t.Run(encoding, func(t *testing.T) {
			t.Parallel()
			admin := pgtest.Pool(t)
			name := strings.ToLower("pglock_" + encoding + "_" + strings.ToLower(rand.Text()[:8]))
			if _, err := admin.Exec(t.Context(), fmt.Sprintf(
				"CREATE DATABASE %s ENCODING '%s' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0", name, encoding)); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _, _ = admin.Exec(context.Background(), "DROP DATABASE "+name+" WITH (FORCE)") })
			u, err := url.Parse(pgtest.URL(t))
			if err != nil {
				t.Fatal(err)
			}
			u.Path = "/" + name
			pool := pgtest.PoolOn(t, u.String())
			schema := "sperren " + name
			f := fixture{t, pool, schema}
			if err := migrations.Up(t.Context(), pool, migrations.WithSchema(schema)); err != nil {
				t.Fatal(err)
			}
			c := openWith(t, f, hostileRole(t, f))
			const lock = "Lager/Müller"
			usual := openWith(t, f, pool)
			for range 2 { // a new row, then an old one
				l := acquire(t, c, lock, pglock.WithHolder("Jürgen"), pglock.WithLabels(map[string]string{"für": "<ö>"}))
				if err := l.Extend(t.Context(), time.Minute); err != nil {
					t.Errorf("Extend: %v", err)
				}
				var held *pglock.BusyError
				if _, err := c.TryAcquire(t.Context(), lock); !errors.As(err, &held) || held.Holder != "Jürgen" {
					t.Errorf("a second try: %v", err)
				}
				if _, err := usual.TryAcquire(t.Context(), lock); !errors.Is(err, pglock.ErrNotAcquired) {
					t.Errorf("a try by a role without such settings: %v", err)
				}
				if k, err := c.Get(t.Context(), lock); err != nil || k.Labels["für"] != "<ö>" {
					t.Errorf("Get: %+v, %v", k, err)
				}
				got := make(chan *pglock.Lease, 1)
				go func() { got <- acquire(t, c, lock) }()
				pgtest.Eventually(t, 10*time.Second, "the waiter listens", func() bool { return pglock.Listening(c) })
				release(t, l)
				release(t, <-got)
			}
			if n, err := c.Prune(t.Context(), 0); n != 1 || err != nil {
				t.Errorf("Prune: %d, %v", n, err)
			}
		})
	}
}

// TestTheLargestVersionStopsNobody: a role that may change rows sets each version to the largest
// value. Every statement of a lease's life still works.
func TestTheLargestVersionStopsNobody(t *testing.T) {
	t.Parallel()
	largest := func(t *testing.T) fixture {
		t.Helper()
		f := newFixture(t)
		f.sql(`CREATE FUNCTION pglock.largest() RETURNS trigger LANGUAGE plpgsql AS $$
			BEGIN NEW.version := 9223372036854775807; RETURN NEW; END $$`)
		f.sql("CREATE TRIGGER largest BEFORE INSERT OR UPDATE ON pglock.distributed_locks FOR EACH ROW EXECUTE FUNCTION pglock.largest()")
		return f
	}
	conformance.Run(t, func(t *testing.T) func() conformance.Locker {
		t.Helper()
		f := largest(t)
		return func() conformance.Locker { return leasesOf(f.open()) }
	})
	f := largest(t)
	c := f.open()
	l := try(t, c, "n")
	if err := l.Extend(t.Context(), 2*time.Minute); err != nil {
		t.Errorf("Extend: %v", err)
	}
	f.sql("ALTER TABLE pglock.distributed_locks DISABLE TRIGGER largest")
	release(t, l)
	if version := value[int64](f, "SELECT version FROM pglock.distributed_locks"); version != 1 {
		t.Errorf("version %d follows the largest", version)
	}
}
