package fencing_test

import (
	"errors"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	_ "embed"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/testserver"
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
// If psql is missing, pgx's simple protocol runs the same statements and must get the same results.
func TestPlainSQL(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	pool := pgtest.PoolOn(t, url)
	ok(t, migrations.Up(t.Context(), pool))
	g := fixture{t: t, pool: pool, schema: "pglock"}
	const name = `the "report's" lock`
	old, current := g.grant(name, time.Minute), g.grant(name, time.Minute)
	run := map[string]func() []string{"pgx": func() []string { return g.playPlain(name, old, current) }}
	var psql string
	if pgtest.HaveTool(t, "psql", func() (err error) { psql, err = testserver.Program("psql"); return err }) {
		run["psql"] = func() []string {
			cmd := exec.CommandContext(t.Context(), psql, "--no-psqlrc", "--quiet", "--file=-", "--dbname", url, "--set=name="+name,
				sprintf("--set=token=%d", current.Token), sprintf("--set=old=%d", old.Token))
			cmd.Stdin = strings.NewReader(plainSQL)
			var problems strings.Builder
			cmd.Stderr = &problems
			out, err := cmd.Output()
			if err != nil {
				t.Errorf("%v: %s", err, &problems)
			}
			return strings.FieldsFunc(string(out), func(r rune) bool { return r == '\n' })
		}
	}
	for client, play := range run {
		if said := play(); strings.Join(said, "; ") != strings.Join(plainSaid, "; ") {
			t.Errorf("%s said\n%s, want\n%s", client, strings.Join(said, "\n"), strings.Join(plainSaid, "\n"))
		}
		g.sql("DROP TABLE reports; TRUNCATE pglock.fencing_high_water")
	}
}

// playPlain runs the file as psql does: variables, \echo, and one statement at a time.
func (g fixture) playPlain(name string, old, current fencing.Fence) (said []string) {
	g.t.Helper()
	conn, err := pgx.ConnectConfig(g.t.Context(), g.pool.Config().ConnConfig)
	ok(g.t, err)
	defer conn.Close(g.t.Context())
	script := strings.NewReplacer(":'name'", "'"+strings.ReplaceAll(name, "'", "''")+"'", ":token", sprintf("%d", current.Token), ":old", sprintf("%d", old.Token)).Replace(plainSQL)
	state := ""
	for _, part := range regexp.MustCompile(`(?m)^\\.*$|(?s:[^\\;]+;)`).FindAllString(regexp.MustCompile(`(?m)^--.*\n`).ReplaceAllString(script, ""), -1) {
		if echo, ok := strings.CutPrefix(part, `\echo `); ok {
			said = append(said, strings.ReplaceAll(echo, ":LAST_ERROR_SQLSTATE", state))
			continue
		}
		if strings.HasPrefix(part, `\`) {
			continue
		}
		rows, err := conn.Query(g.t.Context(), part, pgx.QueryExecModeSimpleProtocol)
		if err == nil {
			var lines []string
			lines, err = pgx.CollectRows(rows, pgx.RowTo[string])
			said = append(said, lines...)
		}
		if err != nil {
			var pg *pgconn.PgError
			if !errors.As(err, &pg) {
				g.t.Fatalf("%s: %v", part, err)
			}
			state = pg.Code
		}
	}
	return said
}
