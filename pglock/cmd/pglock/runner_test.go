//go:build unix

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/migrations"
)

// scriptedRunner is a migration runner that knows nothing of locks: a shell script and psql.
type scriptedRunner struct {
	*cli
	files string
	conn  *pgx.Conn // holds the gate closed
}

const gateKey = 4711

func newScriptedRunner(t *testing.T) *scriptedRunner {
	t.Helper()
	psql := pgtest.Program(t, "psql")
	url := pgtest.Database(t)
	c := bareCLI(t)
	c.pool = pgtest.PoolOn(t, url)
	if err := migrations.Up(t.Context(), c.pool); err != nil {
		t.Fatal(err)
	}
	server := c.pool.Config().ConnConfig
	for name, value := range map[string]string{
		"PGLOCK_DATABASE_URL": url, "PGHOST": server.Host, "PGPORT": fmt.Sprint(server.Port), "PGDATABASE": server.Database, "PGUSER": server.User,
		"PGPASSWORD": server.Password, "PATH": c.dir + string(filepath.ListSeparator) + filepath.Dir(psql) + string(filepath.ListSeparator) + os.Getenv("PATH"),
	} {
		c.set(name, value)
	}
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(t.Context()) })
	if _, err := conn.Exec(t.Context(), fmt.Sprintf("CREATE TABLE journal (n int); CREATE TABLE app_version (version int NOT NULL); SELECT pg_advisory_lock(%d)", gateKey)); err != nil {
		t.Fatal(err)
	}
	s := &scriptedRunner{c, filepath.Join(c.dir, "files"), conn}
	if err := os.Mkdir(s.files, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, sql := range map[string]string{
		"001_gate.sql": fmt.Sprintf("SELECT pg_advisory_xact_lock_shared(%d); INSERT INTO journal VALUES (1);", gateKey),
		"002_more.sql": "INSERT INTO journal VALUES (2);",
	} {
		if err := os.WriteFile(filepath.Join(s.files, name), []byte(sql), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	script, err := os.ReadFile("../../../testdata/runner/migrate.sh")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(c.dir, "migrate.sh"), script, 0o700); err != nil {
		t.Fatal(err)
	}
	return s
}

// atTheGate returns the number of scripts that are in the first file.
func (s *scriptedRunner) atTheGate() (n int) {
	s.t.Helper()
	return count(s.t, s.pool, fmt.Sprintf("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND objid = %d AND database = (SELECT oid FROM pg_database WHERE datname = current_database())", gateKey))
}

func (s *scriptedRunner) openGate() {
	s.t.Helper()
	if _, err := s.conn.Exec(s.t.Context(), fmt.Sprintf("SELECT pg_advisory_unlock(%d)", gateKey)); err != nil {
		s.t.Fatal(err)
	}
}

func count(t *testing.T, pool *pgxpool.Pool, sql string) (n int) {
	t.Helper()
	if err := pool.QueryRow(t.Context(), sql).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// TestI1_P42_RunGuardsAnyMigrationRunner: three hosts start the script at once, and run it one
// after the other. In the control, without pglock run, each applies the same file.
func TestI1_P42_RunGuardsAnyMigrationRunner(t *testing.T) {
	t.Parallel()
	const hosts = 3
	t.Run("under the lock", func(t *testing.T) {
		t.Parallel()
		s := newScriptedRunner(t)
		var calls []*call
		for range hosts {
			calls = append(calls, s.start("run", "migrations", "--", "./migrate.sh", s.files))
		}
		pgtest.Eventually(t, patience, "one script is in the first file", func() bool { return s.atTheGate() == 1 })
		s.openGate()
		applied := ""
		for _, p := range calls {
			r := p.wait()
			if r.status != 0 {
				t.Errorf("status %d: %s", r.status, r.stderr)
			}
			applied += r.stdout
		}
		if applied != "applied 1\napplied 2\n" {
			t.Errorf("the hosts together say %q", applied)
		}
		if n := count(t, s.pool, "SELECT count(*) FROM journal"); n != 2 {
			t.Errorf("%d files were applied, there are two", n)
		}
		if holder, _ := (&cli{t: t, pool: s.pool, schema: "pglock"}).row("migrations"); holder != "" {
			t.Errorf("the lock is still held by %s", holder)
		}
	})
	t.Run("control", func(t *testing.T) {
		t.Parallel()
		s := newScriptedRunner(t)
		var calls []*call
		for range hosts {
			calls = append(calls, s.startWith(func(cmd *exec.Cmd) {
				cmd.Path, cmd.Args = filepath.Join(s.dir, "migrate.sh"), []string{"migrate.sh", s.files}
			}))
		}
		pgtest.Eventually(t, patience, "all are at it", func() bool { return s.atTheGate() == hosts })
		s.openGate()
		for _, p := range calls {
			p.wait()
		}
		if n := count(t, s.pool, "SELECT count(*) FROM journal WHERE n = 1"); n != hosts {
			t.Errorf("without the lock the first file was applied %d times", n)
		}
	})
}

// TestWaitingRunnerPrintsTheHolder: a waiter gives up with status 75 and the holder's name. The
// lock of a killed runner expires.
func TestWaitingRunnerPrintsTheHolder(t *testing.T) {
	t.Parallel()
	s := newScriptedRunner(t)
	first := s.start("run", "--holder", "replica x", "--ttl", "3s", "migrations", "--", "./migrate.sh", s.files)
	pgtest.Eventually(t, patience, "one script is in the first file", func() bool { return s.atTheGate() == 1 })
	if r := s.run("run", "--wait", "300ms", "migrations", "--", "./migrate.sh", s.files); r.status != statusNotAcquired || !strings.Contains(r.stderr, "replica x") {
		t.Errorf("status %d: %s", r.status, r.stderr)
	}
	if err := first.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	first.wait()
	next := s.start("run", "migrations", "--", "./migrate.sh", s.files)
	s.openGate()
	if r := next.wait(); r.status != 0 {
		t.Errorf("after the kill: status %d: %s", r.status, r.stderr)
	}
	// The psql of the killed runner may have finished its file. The next runner continued from what
	// was recorded.
	if n := count(t, s.pool, "SELECT count(DISTINCT version) FROM app_version"); n != 2 {
		t.Errorf("%d versions are recorded", n)
	}
}
