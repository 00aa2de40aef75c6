package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/schema"
)

func TestMigrate(t *testing.T) {
	t.Parallel()
	c := bareCLI(t)
	c.schema = pgtest.SchemaName(t)
	c.set("PGLOCK_SCHEMA", c.schema)
	at := func(version int) string {
		return fmt.Sprintf("schema %q: version %d, this pglock needs %d\n", c.schema, version, schema.Version)
	}
	for _, step := range []struct {
		args    string
		version int
	}{
		{"migrate version", 0},
		{"migrate down --yes", 0},
		{"migrate up", schema.Version},
		{"migrate up", schema.Version},
		{"migrate version", schema.Version},
		{"migrate down --yes", 0},
		{"migrate up", schema.Version},
		{"migrate force 0", 0},
		{fmt.Sprintf("migrate force %d", schema.Version), schema.Version},
	} {
		if r := c.expect(0, strings.Fields(step.args)...); r.stdout != at(step.version) || r.stderr != "" {
			t.Errorf("%s: got %+v, want %s", step.args, r, at(step.version))
		}
	}
}

func TestMigrateDownNeedsYes(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	if r := c.expect(statusUsage, "migrate", "down"); !strings.Contains(r.stderr, "held: confirm it with --yes") {
		t.Errorf("got %+v", r)
	}
	if r := c.expect(0, "migrate", "version"); !strings.Contains(r.stdout, fmt.Sprintf("version %d,", schema.Version)) {
		t.Errorf("the tables are gone: %+v", r)
	}
}

func TestMigrateDirtyAndNewer(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	for _, test := range []struct{ set, says string }{
		{"dirty = true", "dirty version"},
		{"dirty = false, version = 999", "newer"},
	} {
		if _, err := c.pool.Exec(t.Context(), "UPDATE "+pgx.Identifier{c.schema, "pglock_migrations"}.Sanitize()+" SET "+test.set); err != nil {
			t.Fatal(err)
		}
		for _, sub := range []string{"version", "up"} {
			if r := c.expect(statusUnavailable, "migrate", sub); !strings.Contains(r.stderr, test.says) || r.stdout != "" {
				t.Errorf("%s: got %+v", sub, r)
			}
		}
	}
}

func TestVersion(t *testing.T) {
	t.Parallel()
	c := bareCLI(t)
	c.set("PGLOCK_DATABASE_URL", "hunter2") // it needs no database
	r := c.expect(0, "version")
	if lines := strings.Split(r.stdout, "\n"); len(lines) != 4 || !strings.HasPrefix(lines[0], "pglock ") ||
		!strings.HasPrefix(lines[1], "go") || lines[2] != fmt.Sprintf("schema version %d", schema.Version) {
		t.Errorf("got %+v", r)
	}
}
