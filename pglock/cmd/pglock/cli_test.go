package main

import (
	"context"
	"errors"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/pgtest"
)

// patience bounds what a test waits for.
const patience = 20 * time.Second

// TestMain is the command when the test binary is called by its name.
func TestMain(m *testing.M) {
	if strings.TrimSuffix(filepath.Base(os.Args[0]), ".exe") == "pglock" {
		main()
	}
	flag.Parse()
	_ = flag.Set("test.parallel", "8") // these tests wait more than they compute
	pgtest.Main(m)
}

// cli calls pglock as a person would, from an empty directory, with tables of its own.
type cli struct {
	t      *testing.T
	dir    string // the working directory, and the first in PATH
	env    []string
	schema string
	pool   *pgxpool.Pool
}

// newCLI is for most tests: the tables are there.
func newCLI(t *testing.T) *cli {
	t.Helper()
	c := bareCLI(t)
	c.schema = pgtest.Schema(t, c.pool)
	c.set("PGLOCK_SCHEMA", c.schema)
	return c
}

// bareCLI has a database, but no schema.
func bareCLI(t *testing.T) *cli {
	t.Helper()
	c := &cli{t: t, dir: t.TempDir(), pool: pgtest.Pool(t)}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	link, name := os.Symlink, "pglock"
	if runtime.GOOS == "windows" {
		link, name = os.Link, "pglock.exe" // whose symbolic links are for administrators
	}
	if err := link(self, filepath.Join(c.dir, name)); err != nil {
		t.Fatal(err)
	}
	for _, entry := range os.Environ() {
		if !strings.HasPrefix(entry, "PG") && !strings.HasPrefix(entry, "DATABASE_URL=") {
			c.env = append(c.env, entry)
		}
	}
	c.set("PATH", c.dir+string(filepath.ListSeparator)+os.Getenv("PATH"))
	c.set("HOME", c.dir) // no ~/.pgpass, no service file
	c.set("GORACE", "atexit_sleep_ms=0")
	c.set("PGLOCK_DATABASE_URL", pgtest.URL(t))
	return c
}

func (c *cli) set(name, value string) { c.env = append(c.env, name+"="+value) }

// result is how a call ended.
type result struct {
	status         int
	stdout, stderr string
}

// run calls pglock and waits for it.
func (c *cli) run(args ...string) result {
	c.t.Helper()
	return c.start(args...).wait()
}

// expect calls pglock and checks its status.
func (c *cli) expect(status int, args ...string) result {
	c.t.Helper()
	r := c.run(args...)
	if r.status != status {
		c.t.Errorf("pglock %q: status %d, want %d\nstdout: %s\nstderr: %s", args, r.status, status, r.stdout, r.stderr)
	}
	return r
}

// call is a pglock that runs.
type call struct {
	t              *testing.T
	cmd            *exec.Cmd
	stdout, stderr *os.File
	ended          chan struct{}
}

// start calls pglock. It is killed on cleanup.
func (c *cli) start(args ...string) *call {
	c.t.Helper()
	return c.startWith(func(*exec.Cmd) {}, args...)
}

// startWith is start with a change to how it is called.
func (c *cli) startWith(change func(*exec.Cmd), args ...string) *call {
	c.t.Helper()
	// Files, not pipes: what a command leaves behind may keep them open.
	p := &call{t: c.t, stdout: c.file("stdout"), stderr: c.file("stderr"), ended: make(chan struct{})}
	p.cmd = exec.Command(filepath.Join(c.dir, "pglock"), args...)
	p.cmd.Dir, p.cmd.Env, p.cmd.Stdout, p.cmd.Stderr = c.dir, c.env, p.stdout, p.stderr
	change(p.cmd)
	if err := p.cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	go func() {
		defer close(p.ended)
		_ = p.cmd.Wait() // its error is the exit status
	}()
	c.t.Cleanup(func() {
		_ = p.cmd.Process.Kill() // as a rule it has ended
		<-p.ended
	})
	return p
}

func (c *cli) file(name string) *os.File {
	c.t.Helper()
	f, err := os.CreateTemp(c.dir, name)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { f.Close() })
	return f
}

func (p *call) wait() result {
	p.t.Helper()
	select {
	case <-p.ended:
	case <-time.After(patience):
		p.t.Fatalf("pglock %q still runs\nstdout: %s\nstderr: %s", p.cmd.Args, read(p.t, p.stdout.Name()), read(p.t, p.stderr.Name()))
	}
	return result{p.cmd.ProcessState.ExitCode(), read(p.t, p.stdout.Name()), read(p.t, p.stderr.Name())}
}

// says waits until pglock, or its command, has said that on stderr.
func (p *call) says(text string) {
	p.t.Helper()
	pgtest.Eventually(p.t, patience, "pglock says "+text, func() bool {
		return strings.Contains(read(p.t, p.stderr.Name()), text)
	})
}

// prints waits until the command has printed that.
func (p *call) prints(text string) {
	p.t.Helper()
	pgtest.Eventually(p.t, patience, "the command prints "+text, func() bool {
		return strings.Contains(read(p.t, p.stdout.Name()), text)
	})
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return string(text)
}

// row returns the holder of a lock, "" if it is free, and whether the grant lives.
func (c *cli) row(name string) (holder string, live bool) {
	c.t.Helper()
	err := c.pool.QueryRow(context.Background(), "SELECT coalesce(holder, ''), expires_at > clock_timestamp() FROM "+
		c.table()+" WHERE name = $1", name).Scan(&holder, &live)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		c.t.Fatal(err)
	}
	return holder, live
}

func (c *cli) table() string { return pgx.Identifier{c.schema, "distributed_locks"}.Sanitize() }

// steal gives the lock to somebody else, as an administrator's mistake would.
func (c *cli) steal(name string) {
	c.t.Helper()
	tag, err := c.pool.Exec(context.Background(), "UPDATE "+c.table()+" SET token = "+
		pgx.Identifier{c.schema}.Sanitize()+".next_fencing_token(), holder = 'thief', expires_at = clock_timestamp() + interval '1 hour' WHERE name = $1", name)
	if err != nil || tag.RowsAffected() != 1 {
		c.t.Fatal(tag, err)
	}
}
