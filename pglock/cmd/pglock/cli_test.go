package main

import (
	"context"
	"errors"
	"flag"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock/cmd/pglock/internal/child"
)

// TestMain runs the command if the test binary is called pglock.
func TestMain(m *testing.M) {
	child.Hook()
	if strings.TrimSuffix(filepath.Base(os.Args[0]), ".exe") == "pglock" {
		main()
	}
	// Under nohup, SIGHUP would be ignored in the tests and in all processes that they start.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP)
	flag.Parse()
	if flag.Lookup("test.fuzz").Value.String() == "" {
		_ = flag.Set("test.parallel", "8") // these tests mostly wait
	}
	pgtest.Main(m)
}

// cli runs pglock from an empty directory, with its own tables.
type cli struct {
	t      *testing.T
	dir    string // the working directory, and the first entry of PATH
	env    []string
	schema string
	pool   *pgxpool.Pool
}

// newCLI returns a cli whose tables exist.
func newCLI(t *testing.T) *cli {
	t.Helper()
	c := bareCLI(t)
	c.schema = pgtest.Schema(t, c.pool)
	c.set("PGLOCK_SCHEMA", c.schema)
	return c
}

// bareCLI returns a cli without a schema.
func bareCLI(t *testing.T) *cli {
	t.Helper()
	c := &cli{t: t, dir: t.TempDir(), pool: pgtest.Pool(t)}
	self, err := os.Executable()
	locktest.OK(t, err)
	link, name := os.Symlink, "pglock"
	if runtime.GOOS == "windows" {
		link, name = os.Link, "pglock.exe" // only administrators may create symbolic links on Windows
	}
	locktest.OK(t, link(self, filepath.Join(c.dir, name)))
	for _, entry := range os.Environ() {
		if !strings.HasPrefix(entry, "PG") && !strings.HasPrefix(entry, "DATABASE_URL=") {
			c.env = append(c.env, entry)
		}
	}
	c.set("PATH", c.dir+string(filepath.ListSeparator)+os.Getenv("PATH"))
	c.set("HOME", c.dir) // without ~/.pgpass and service files
	c.set("GORACE", "atexit_sleep_ms=0")
	c.set("PGLOCK_DATABASE_URL", pgtest.URL(t))
	return c
}

func (c *cli) set(name, value string) { c.env = append(c.env, name+"="+value) }

func (c *cli) unset(name string) {
	c.env = slices.DeleteFunc(c.env, func(entry string) bool { return strings.HasPrefix(entry, name+"=") })
}

// sh is start for a shell, which runs the script.
func (c *cli) sh(script string) *call {
	c.t.Helper()
	return c.startWith(func(cmd *exec.Cmd) { cmd.Path, cmd.Args = "/bin/sh", []string{"sh", "-c", script} })
}

// result is the exit status and the output of a call.
type result struct {
	status         int
	stdout, stderr string
}

// run runs pglock and waits for it.
func (c *cli) run(args ...string) result {
	c.t.Helper()
	return c.start(args...).wait()
}

// expect runs pglock and checks its exit status.
func (c *cli) expect(status int, args ...string) result {
	c.t.Helper()
	r := c.run(args...)
	if r.status != status {
		c.t.Errorf("pglock %q: status %d, want %d\nstdout: %s\nstderr: %s", args, r.status, status, r.stdout, r.stderr)
	}
	return r
}

// call is a running pglock.
type call struct {
	t              *testing.T
	cmd            *exec.Cmd
	stdout, stderr *os.File
	ended          chan struct{}
}

// start starts pglock. Cleanup kills it.
func (c *cli) start(args ...string) *call {
	c.t.Helper()
	return c.startWith(func(*exec.Cmd) {}, args...)
}

// startWith is start, with a change to the command.
func (c *cli) startWith(change func(*exec.Cmd), args ...string) *call {
	c.t.Helper()
	// Files instead of pipes: a background process of a command may keep them open.
	p := &call{t: c.t, stdout: c.file("stdout"), stderr: c.file("stderr"), ended: make(chan struct{})}
	p.cmd = exec.Command(filepath.Join(c.dir, "pglock"), args...)
	p.cmd.Dir, p.cmd.Env, p.cmd.Stdout, p.cmd.Stderr = c.dir, c.env, p.stdout, p.stderr
	change(p.cmd)
	locktest.OK(c.t, p.cmd.Start())
	go func() {
		defer close(p.ended)
		_ = p.cmd.Wait() // its error is the exit status
	}()
	c.t.Cleanup(func() {
		_ = p.cmd.Process.Kill() // usually it has ended
		<-p.ended
	})
	return p
}

func (c *cli) file(name string) *os.File {
	c.t.Helper()
	f, err := os.CreateTemp(c.dir, name)
	locktest.OK(c.t, err)
	c.t.Cleanup(func() { f.Close() })
	return f
}

func (p *call) wait() result {
	p.t.Helper()
	select {
	case <-p.ended:
	case <-time.After(pgtest.Patience):
		p.t.Fatalf("pglock %q still runs\nstdout: %s\nstderr: %s", p.cmd.Args, read(p.t, p.stdout.Name()), read(p.t, p.stderr.Name()))
	}
	return result{p.cmd.ProcessState.ExitCode(), read(p.t, p.stdout.Name()), read(p.t, p.stderr.Name())}
}

// waitForStderr waits until pglock or its command has printed text on stderr, and waitForStdout until
// its command has printed it on stdout.
func (p *call) waitForStderr(text string) { p.t.Helper(); p.waitFor(p.stderr, text) }
func (p *call) waitForStdout(text string) { p.t.Helper(); p.waitFor(p.stdout, text) }

func (p *call) waitFor(stream *os.File, text string) {
	p.t.Helper()
	pgtest.Eventually(p.t, "it prints "+text, func() bool { return strings.Contains(read(p.t, stream.Name()), text) })
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return string(text)
}

// row returns the holder of a lock, or "" if it is free, and whether the grant has not expired.
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

// steal grants the lock to another holder, as an administrator's mistake would.
func (c *cli) steal(name string) {
	c.t.Helper()
	locktest.Scan[int64](c.t, c.pool, "UPDATE "+c.table()+" SET token = "+pgx.Identifier{c.schema}.Sanitize()+
		".next_fencing_token(), holder = 'thief', expires_at = clock_timestamp() + interval '1 hour' WHERE name = $1 RETURNING token", name)
}
