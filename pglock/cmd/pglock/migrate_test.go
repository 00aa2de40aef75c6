package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/schema"
)

func TestMigrate(t *testing.T) {
	t.Parallel()
	c := bareCLI(t)
	c.schema = pgtest.SchemaName(t)
	c.set("PGLOCK_SCHEMA", c.schema)
	at := func(version int, done string) string {
		return fmt.Sprintf("schema %q: version %d, required version %d%s\n", c.schema, version, schema.Version, done)
	}
	const nothing = " (nothing to do)"
	up, down := " (migrated from version 0)", fmt.Sprintf(" (migrated from version %d)", schema.Version)
	for _, step := range []struct {
		args    string
		status  int
		version int
		done    string
	}{
		{"migrate version", statusUnavailable, 0, ""},
		{"migrate down --yes", 0, 0, nothing},
		{"migrate up", 0, schema.Version, up},
		{"migrate up", 0, schema.Version, nothing},
		{"migrate version", 0, schema.Version, ""},
		{"migrate down --yes", 0, 0, down},
		{"migrate down --yes", 0, 0, nothing},
		{"migrate up", 0, schema.Version, up},
		{"migrate force 1", 0, 1, ""},
		{"migrate version", statusUnavailable, 1, ""},
		{"migrate force 0", 0, schema.Version, ""}, // the record is empty, and the tables say what they are
		{"migrate version", 0, schema.Version, ""},
		{fmt.Sprintf("migrate force %d", schema.Version), 0, schema.Version, ""},
	} {
		r := c.expect(step.status, strings.Fields(step.args)...)
		if r.stdout != at(step.version, step.done) || (r.stderr == "") != (step.status == 0) {
			t.Errorf("%s: got %+v, want %s", step.args, r, at(step.version, step.done))
		}
		if step.status != 0 && !strings.Contains(r.stderr, "run pglock migrate up") {
			t.Errorf("%s: says %q", step.args, r.stderr)
		}
	}
}

func TestMigrateDirtyAndNewer(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	update := "UPDATE " + pgx.Identifier{c.schema, "pglock_migrations"}.Sanitize() + " SET "
	for _, test := range []struct{ change, says string }{
		{update + "dirty = true", "dirty version"},
		{update + "dirty = false, version = 999; CREATE OR REPLACE FUNCTION " + pgx.Identifier{c.schema}.Sanitize() +
			".pglock_oldest_client() RETURNS integer LANGUAGE sql AS 'SELECT 998'", "newer"},
	} {
		_, err := c.pool.Exec(t.Context(), test.change, pgx.QueryExecModeSimpleProtocol)
		locktest.OK(t, err)
		for _, sub := range []string{"version", "up"} {
			if r := c.expect(statusUnavailable, "migrate", sub); !strings.Contains(r.stderr, test.says) || r.stdout != "" {
				t.Errorf("%s: got %+v", sub, r)
			}
		}
	}
}

// TestVersion needs no database.
func TestVersion(t *testing.T) {
	t.Parallel()
	c := bareCLI(t)
	c.set("PGLOCK_DATABASE_URL", "hunter98")
	r := c.expect(0, "--version")
	if lines := strings.Split(r.stdout, "\n"); len(lines) != 4 || !strings.HasPrefix(lines[0], "pglock ") ||
		!strings.HasPrefix(lines[1], "go") || lines[2] != fmt.Sprintf("schema version %d", schema.Version) {
		t.Errorf("got %+v", r)
	}
}
