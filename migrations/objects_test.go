package migrations_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/migrations"
	"github.com/pglock/pglock-go/pglock"
)

// TestANumberIsNoSchema: where an object is missing or another one, as after a partial restore, Up
// names it although the version is right, and changes nothing. So does the error of a client that
// needs it. The remedy leads to a schema that works.
func TestANumberIsNoSchema(t *testing.T) {
	t.Parallel()
	for change, test := range map[string]struct{ up, client string }{
		"DROP FUNCTION pglock.acquire_slots": {
			"function acquire_slots(_text, _int4, _int4, uuid, text, jsonb, int8, int8, bool) is missing",
			"pglock: schema missing: schema \"pglock\" lacks an object (ERROR: function pglock.acquire_slots(",
		},
		"ALTER TABLE pglock.distributed_locks RENAME labels TO tags": {
			"column distributed_locks.labels is missing", `lacks an object (ERROR: column "labels" of relation "distributed_locks" does not exist`,
		},
		"CREATE OR REPLACE FUNCTION pglock.by_index() RETURNS boolean LANGUAGE plpgsql STABLE COST 1000 AS 'BEGIN RETURN true; END'": {"function by_index() differs", ""},
		"DROP FUNCTION pglock.share_grant, pglock.add_room, pglock.leave, pglock.watch, pglock.renew, pglock.release, pglock.wake_each": {
			"and 2 more", "",
		},
	} {
		t.Run(change, func(t *testing.T) {
			t.Parallel()
			url := pgtest.Database(t)
			pool := pgtest.PoolOn(t, url)
			locktest.OK(t, migrations.Up(t.Context(), pool))
			client := locktest.ClientOn(t, pool)
			locktest.Exec(t, pool, change)
			before := objects(t, pool, "pglock")
			for range 2 {
				err := migrations.Up(t.Context(), pool)
				if !errors.Is(err, pglock.ErrSchema) || !strings.Contains(err.Error(), test.up) || !strings.Contains(err.Error(), `DROP SCHEMA "pglock" CASCADE`) {
					t.Errorf("Up: %v, want %q", err, test.up)
				}
			}
			if after := objects(t, pool, "pglock"); strings.Join(after, ",") != strings.Join(before, ",") {
				t.Errorf("Up has changed %v to %v", before, after)
			}
			if _, err := client.Semaphore("n", 2).Acquire(t.Context()); test.client != "" && (!errors.Is(err, schema.ErrMissing) || !strings.Contains(err.Error(), test.client)) {
				t.Errorf("Acquire: %v, want %q", err, test.client)
			}
			locktest.Exec(t, pool, `DROP SCHEMA "pglock" CASCADE`)
			locktest.OK(t, migrations.Up(t.Context(), pool))
		})
	}
}

// TestPlansAreNotCompiled: a function whose plans may read whole tables at a cost beyond all others
// has no compilation of its plans, which would take 20 ms for 5 µs of work.
func TestPlansAreNotCompiled(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	rows, err := pool.Query(t.Context(), `SELECT p.oid::regprocedure::text, 'jit=off' = ANY (p.proconfig)
		FROM pg_proc AS p WHERE p.pronamespace = to_regnamespace(quote_ident($1)) AND 'enable_seqscan=off' = ANY (p.proconfig)`, pgtest.Schema(t, pool))
	locktest.OK(t, err)
	var function string
	var quick bool
	tag, err := pgx.ForEachRow(rows, []any{&function, &quick}, func() error {
		if !quick {
			t.Errorf("%s has enable_seqscan = off without jit = off", function)
		}
		return nil
	})
	locktest.OK(t, err)
	if tag.RowsAffected() < 10 {
		t.Errorf("%d functions", tag.RowsAffected())
	}
}
