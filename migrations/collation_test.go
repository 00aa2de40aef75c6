package migrations_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/pgtx"
	"github.com/pglock/pglock-go/internal/testserver"
	"github.com/pglock/pglock-go/migrations"
)

// TestKeysAreOrderedByTheirBytes: the order of any other collation belongs to a library outside of the database.
// The control is an index that depends on one, which the clients' check refuses.
func TestKeysAreOrderedByTheirBytes(t *testing.T) {
	t.Parallel()
	pool := pgtest.PoolOn(t, pgtest.Database(t))
	locktest.OK(t, migrations.Up(t.Context(), pool))
	const foreign = `
		SELECT c.relname || ' by ' || o.id::regcollation
		FROM pg_class AS c JOIN pg_index AS i ON i.indexrelid = c.oid CROSS JOIN unnest(i.indcollation) AS o (id)
		WHERE c.relnamespace = 'pglock'::regnamespace AND o.id <> 0 AND o.id <> '"C"'::regcollation`
	if got := scanAll(t, pool, foreign); len(got) > 0 {
		t.Errorf("indexes depend on a library: %q", got)
	}
	locktest.Exec(t, pool, "CREATE TABLE pglock.of_a_program (name text PRIMARY KEY)") // is its own concern
	const unsafe = "SELECT coalesce(pglock.unsafe_server(), '')"
	if why := scanAll(t, pool, unsafe)[0]; why != "" {
		t.Errorf("the server is unsafe: %s", why)
	}
	locktest.Exec(t, pool, "CREATE INDEX foreign_order ON pglock.fencing_high_water ((resource::text COLLATE \"default\"))")
	if got := scanAll(t, pool, foreign); len(got) == 0 {
		t.Error("control: no index depends on a library")
	}
	if why := scanAll(t, pool, unsafe)[0]; !strings.Contains(why, `foreign_order orders names by the collation`) {
		t.Errorf("the server is unsafe: %q", why)
	}
}

// TestP77_AnotherLibraryOrdersTexts starts one data directory under two libraries that order texts differently: by
// their code points, as that of Alpine does, and by language, as that of Debian does. What was held, done or marked
// under the first one is so under the second. The control is a table with a key of the database's collation, whose
// index misses rows.
func TestP77_AnotherLibraryOrdersTexts(t *testing.T) {
	t.Parallel()
	locales := t.TempDir()
	pgtest.NeedTool(t, "locales", func() error { return compileLocale(locales, "codepoint_collation") })
	server := pgtest.Server(t, testserver.Options{Environ: []string{"LOCPATH=" + locales}})
	admin := pgtest.PoolOn(t, server.URL())
	locktest.Exec(t, admin, "CREATE DATABASE texts TEMPLATE template0 LC_COLLATE 'xx_XX.UTF-8' LC_CTYPE 'xx_XX.UTF-8'")
	for _, path := range []string{"seqscan", "hashjoin", "mergejoin"} { // the tables are small, and to be read by their indexes
		locktest.Exec(t, admin, "ALTER DATABASE texts SET enable_"+path+" = off")
	}
	open := func() *pgxpool.Pool {
		return pgtest.PoolOn(t, strings.Replace(server.URL(), "/postgres?", "/texts?", 1))
	}

	pool := open()
	locktest.OK(t, migrations.Up(t.Context(), pool))
	locktest.Exec(t, pool, "CREATE TABLE plain (name text PRIMARY KEY)")
	var names []string
	for i := range 20 {
		for _, form := range []string{"Order:%d", "order-%d", "invoice_%d", "Ähre %d"} {
			names = append(names, fmt.Sprintf(form, i))
		}
	}
	locktest.Exec(t, pool, "INSERT INTO plain SELECT unnest($1::text[])", names)
	const (
		holding = "SELECT count(*) FROM unnest($1::text[]) AS u (n) WHERE (SELECT granted FROM pglock.acquire(n, $2::text, '1 h'))"
		claims  = `SELECT count(*) FROM unnest($1::text[]) AS u (n) WHERE (SELECT claimed
			FROM pglock.once_claim(n, sha256('request'), NULL, NULL, NULL, $2::text, NULL))`
	)
	n := len(names)
	if got := count(t, pool, holding, names, "first"); got != n {
		t.Fatalf("%d of %d names were granted", got, n)
	}
	if got := count(t, pool, claims, names, "first"); got != n {
		t.Fatalf("%d of %d keys were claimed", got, n)
	}
	locktest.Exec(t, pool, "UPDATE pglock.once_keys SET state = 'done', expires_at = clock_timestamp() + interval '1 h'")
	locktest.Exec(t, pool, "SELECT pglock.advance(n, 1000), pglock.advance('last tick: ' || n, 1000) FROM unnest($1::text[]) AS u (n)", names)
	pool.Close()
	admin.Close()

	locktest.OK(t, server.Stop(testserver.Fast))
	locktest.OK(t, compileLocale(locales, `copy "iso14651_t1"`))
	locktest.OK(t, server.Start())
	pool = open()
	missed := count(t, pool, "SELECT count(*) FROM unnest($1::text[]) AS u (n) WHERE NOT EXISTS (SELECT FROM plain AS p WHERE p.name = u.n)", names)
	t.Logf("the control's index misses %d of %d rows", missed, n)
	if missed == 0 {
		t.Fatal("control: both libraries order texts in the same way")
	}
	if got := count(t, pool, holding, names, "second"); got != 0 {
		t.Errorf("%d of %d held locks were granted again", got, n)
	}
	if got := count(t, pool, claims, names, "second"); got != 0 {
		t.Errorf("%d of %d finished keys were claimed again", got, n)
	}
	accepted := 0
	for _, name := range names {
		for _, mark := range []string{name, "last tick: " + name} {
			if _, err := pool.Exec(t.Context(), "SELECT pglock.advance($1, 1)", mark); err == nil {
				accepted++
			} else if pgtx.SQLState(err) != "PGL01" {
				t.Fatal(err)
			}
		}
	}
	if accepted > 0 {
		t.Errorf("%d of %d marks accepted an older token", accepted, 2*n)
	}
	locktest.Exec(t, pool, "REINDEX SCHEMA pglock")
}

// count returns the only value of a query.
func count(t *testing.T, pool *pgxpool.Pool, sql string, args ...any) (n int) {
	t.Helper()
	locktest.OK(t, pool.QueryRow(t.Context(), sql, args...).Scan(&n))
	return n
}

// compileLocale puts a locale into dir that orders texts as the lines of its LC_COLLATE say.
func compileLocale(dir, order string) error {
	source := "comment_char %\nescape_char /\nLC_COLLATE\n" + order + "\nEND LC_COLLATE\n"
	for _, category := range strings.Fields("CTYPE MONETARY NUMERIC TIME MESSAGES PAPER NAME ADDRESS TELEPHONE MEASUREMENT IDENTIFICATION") {
		source += "LC_" + category + "\ncopy \"en_US\"\nEND LC_" + category + "\n"
	}
	file := filepath.Join(dir, "source")
	if err := os.WriteFile(file, []byte(source), 0o600); err != nil {
		return err
	}
	for parent := dir; parent != os.TempDir() && parent != "/"; parent = filepath.Dir(parent) {
		if err := os.Chmod(parent, 0o755); err != nil { // the server has an account of its own
			return err
		}
	}
	out, err := exec.Command("localedef", "--no-archive", "-c", "-i", file, "-f", "UTF-8", filepath.Join(dir, "xx_XX.UTF-8")).CombinedOutput()
	if err != nil {
		return fmt.Errorf("localedef: %w: %s: install the package locales", err, out)
	}
	return nil
}
