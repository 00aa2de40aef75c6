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
		if value[int](f, "SELECT count(*) FROM pg_settings WHERE lower(name) = lower($1)", name) == 0 ||
			name == "standard_conforming_strings" && !pgtest.EscapesAreOld(t) {
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
	must(t, err)
	t.Cleanup(pool.Close)
	return pool
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
				return func() conformance.Locker { return leasesOf(f.openOn(pool)) }
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
			must(t, err)
			u.Path = "/" + name
			pool := pgtest.PoolOn(t, u.String())
			schema := "sperren " + name
			f := fixture{t, pool, schema}
			must(t, migrations.Up(t.Context(), pool, migrations.WithSchema(schema)))
			c := f.openOn(hostileRole(t, f))
			const lock = "Lager/Müller"
			usual := f.openOn(pool)
			for range 2 { // a new row, then an old one
				l := acquire(t, c, lock, pglock.WithHolder("Jürgen"), pglock.WithLabels(map[string]string{"für": "<ö>"}))
				check(t, l.Extend(t.Context(), time.Minute))
				var held *pglock.BusyError
				if _, err := c.TryAcquire(t.Context(), lock); !errors.As(err, &held) || held.Holder != "Jürgen" {
					t.Errorf("a second try: %v", err)
				}
				isBusy(t, "a try by a role without such settings", usual.Lock(lock))
				if k, err := c.Get(t.Context(), lock); err != nil || k.Labels["für"] != "<ö>" {
					t.Errorf("Get: %+v, %v", k, err)
				}
				got := async(t, c.Lock(lock))
				pgtest.Eventually(t, "the waiter listens", func() bool { return pglock.Listening(c) })
				release(t, l)
				release(t, next(t, got))
			}
			pgtest.Eventually(t, "the waiter's ticket is deleted, and the name pruned", func() bool {
				n, err := c.Prune(t.Context(), 0)
				return n == 1 && err == nil
			})
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
	check(t, l.Extend(t.Context(), 2*time.Minute))
	f.sql("ALTER TABLE pglock.distributed_locks DISABLE TRIGGER largest")
	release(t, l)
	is(f, "version follows the largest", int64(1), "SELECT version FROM pglock.distributed_locks")
}

// TestConformanceOnAnOddServer migrates and runs the suite in an odd database. Names that differ by
// its rules only are different names, and a batch of them is granted.
func TestConformanceOnAnOddServer(t *testing.T) {
	t.Parallel()
	url := pgtest.OddDatabase(t)
	conformance.Run(t, func(t *testing.T) func() conformance.Locker {
		t.Helper()
		f := on(t, url)
		return func() conformance.Locker { return leasesOf(f.open()) }
	})
	f := on(t, url)
	c, other := f.open(), f.open()
	for _, name := range []string{"i", "I", "ı", "İ", "é", "e\u0301"} {
		l := acquire(t, c, name, pglock.WithTTL(time.Minute))
		check(t, l.Extend(t.Context(), time.Hour))
		held, err := other.Get(t.Context(), name)
		if err != nil || held.Name != name || held.Token != l.Token() || held.Remaining < 30*time.Minute {
			t.Errorf("%q: %+v, %v", name, held, err)
		}
	}
	s := c.Semaphore("S", 2)
	one := tried(t, s)
	release(t, tried(t, s))
	release(t, one)
	release(t, tried(t, s.Weight(2)))
}

// TestEveryExecMode runs the protocol in each query mode of pgx, some of which poolers in
// transaction mode need.
func TestEveryExecMode(t *testing.T) {
	t.Parallel()
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec,
		pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
	} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Pool(t, func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = mode })
			c, err := pglock.Open(t.Context(), pool, pglock.WithSchema(pgtest.Schema(t, pool)))
			must(t, err)
			for range 2 { // a new row, then an old one
				l := acquire(t, c, "n", pglock.WithLabels(map[string]string{"k": `"v"`}))
				isBusy(t, "a second try", c.Lock("n"))
				check(t, l.Extend(t.Context(), time.Minute))
				if k, err := c.Get(t.Context(), "n"); err != nil || k.Token != l.Token() || k.Labels["k"] != `"v"` || k.Remaining < time.Minute {
					t.Errorf("Get: %+v, %v", k, err)
				}
				check(t, l.Release(t.Context()))
			}
			if _, err := c.Prune(t.Context(), 0); err != nil {
				t.Errorf("Prune: %v", err)
			}
			check(t, c.Close(t.Context()))
		})
	}
}
