package fencing_test

import (
	"os/exec"
	"strings"
	"testing"
	"time"

	_ "embed"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/migrations"
)

//go:embed testdata/plain.sql
var plainSQL string

// plainSaid is the output of the session.
var plainSaid = []string{
	"compared new", "report new", "guarded", "stale PGL01", "protected", "unfenced PGL02", "bound", "report bound", "listed reports", "unprotected",
	"advanced", "behind PGL01",
}

// TestPlainSQL runs the documented statements in psql, in a new database with the default schema.
func TestPlainSQL(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	pool := pgtest.PoolOn(t, url)
	ok(t, migrations.Up(t.Context(), pool))
	g := fixture{t: t, pool: pool, schema: "pglock"}
	const name = `the "report's" lock`
	old, current := g.grant(name, time.Minute), g.grant(name, time.Minute)
	cmd := exec.CommandContext(t.Context(), pgtest.Program(t, "psql"), "--no-psqlrc", "--quiet", "--file=-", "--dbname", url, "--set=name="+name,
		sprintf("--set=token=%d", current.Token), sprintf("--set=old=%d", old.Token))
	cmd.Stdin = strings.NewReader(plainSQL)
	var problems strings.Builder
	cmd.Stderr = &problems
	out, err := cmd.Output()
	if err != nil {
		t.Errorf("%v: %s", err, &problems)
	}
	said := strings.FieldsFunc(string(out), func(r rune) bool { return r == '\n' })
	if strings.Join(said, "; ") != strings.Join(plainSaid, "; ") {
		t.Errorf("psql said\n%s, want\n%s", strings.Join(said, "\n"), strings.Join(plainSaid, "\n"))
	}
}
