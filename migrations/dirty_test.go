package migrations_test

import (
	"errors"
	"regexp"
	"slices"
	"strconv"
	"testing"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/migrations"
)

// TestDirtyErrorSaysHowToContinue: after a failure or an interruption in either direction, the commands
// of the error's text lead to tables that are up to date. What failed has left nothing.
func TestDirtyErrorSaysHowToContinue(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		without   bool   // there are no tables at first
		interrupt string // makes Up or Down fail, or leaves the state that a killed process leaves
		repair    string
		recorded  int
		found     int
	}{
		"Up, a table is in the way": {
			without: true, interrupt: "CREATE TABLE distributed_locks ()",
			repair: "DROP TABLE distributed_locks", recorded: 1, found: 0,
		},
		"Down, the last migration is undone": {
			interrupt: "ALTER TABLE fencing_high_water RENAME TO elsewhere",
			repair:    "ALTER TABLE elsewhere RENAME TO fencing_high_water", recorded: 4, found: 5,
		},
		"Down, nothing is left to undo": {
			interrupt: "ALTER TABLE lock_waiters RENAME TO elsewhere",
			repair:    "ALTER TABLE elsewhere RENAME TO lock_waiters", recorded: 0, found: 1,
		},
		"Up, killed after the migration": {
			interrupt: "UPDATE pglock_migrations SET dirty = true",
			recorded:  schema.Version, found: schema.Version,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Pool(t)
			schemaName := pgtest.Schema(t, pool)
			in := migrations.WithSchema(schemaName)
			run := func(sql string) {
				t.Helper()
				locktest.Exec(t, pool, "BEGIN; SET LOCAL search_path TO "+schema.Quote(schemaName)+";"+sql+"; COMMIT")
			}
			call := migrations.Down
			if test.without {
				locktest.OK(t, migrations.Down(t.Context(), pool, in))
				call = migrations.Up
			}
			run(test.interrupt)
			before := objects(t, pool, schemaName)
			for range 2 {
				if err := call(t.Context(), pool, in); !errors.Is(err, migrations.ErrDirty) {
					t.Fatalf("interrupted: %v", err)
				}
			}
			if left := objects(t, pool, schemaName); test.without && !slices.Equal(left, before) {
				t.Errorf("the failed migration left %v", left)
			}
			_, err := migrations.Version(t.Context(), pool, in)
			var dirty *migrations.DirtyError
			if !errors.As(err, &dirty) || dirty.Version != test.recorded || dirty.Found != test.found {
				t.Errorf("Version: %+v, want version %d recorded and %d found", dirty, test.recorded, test.found)
			}
			if test.repair != "" {
				run(test.repair)
			}
			remedy := regexp.MustCompile("`pglock migrate force ([0-9]+)`").FindAllStringSubmatch(err.Error(), -1)
			if len(remedy) != 1 {
				t.Fatalf("the error names %d versions: %v", len(remedy), err)
			}
			version, _ := strconv.Atoi(remedy[0][1])
			locktest.OK(t, migrations.Force(t.Context(), pool, version, in))
			if err := migrations.Up(t.Context(), pool, in); err != nil {
				t.Errorf("Up, as the error says: %v", err)
			}
			if err := migrations.Down(t.Context(), pool, in); err != nil {
				t.Errorf("Down: %v", err)
			}
			if err := migrations.Force(t.Context(), pool, schema.Version+1, in); !errors.Is(err, migrations.ErrNoVersion) {
				t.Errorf("forced to a version that doesn't exist: %v", err)
			}
		})
	}
}

// TestTheTablesKnowTheirVersion: without its record, as after a tool has truncated all tables, Up
// has nothing to do, and Down removes everything.
func TestTheTablesKnowTheirVersion(t *testing.T) {
	t.Parallel()
	pool := pgtest.PoolOn(t, pgtest.Database(t))
	for _, lose := range []string{"TRUNCATE pglock.pglock_migrations", "DROP TABLE pglock.pglock_migrations"} {
		locktest.OK(t, migrations.Up(t.Context(), pool))
		locktest.Exec(t, pool, lose)
		for range 2 {
			if v, err := migrations.Version(t.Context(), pool); v != schema.Version || err != nil {
				t.Errorf("%s: version %d, %v", lose, v, err)
			}
			locktest.OK(t, migrations.Up(t.Context(), pool, migrations.WithReader(pgtest.RoleOf(pool))))
		}
		locktest.OK(t, migrations.Down(t.Context(), pool))
		if v, err := migrations.Version(t.Context(), pool); v != 0 || err != nil || len(objects(t, pool, "pglock")) > 0 {
			t.Errorf("after Down: version %d, %v, %v", v, err, objects(t, pool, "pglock"))
		}
	}
}
