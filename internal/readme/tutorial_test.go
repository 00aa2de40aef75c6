//go:build unix

package readme_test

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/pgtest"
)

// tutorial builds a program of a tutorial, and returns a pool on a new database with its table.
func tutorial(t *testing.T, program, table string) (pool *pgxpool.Pool, start func(args ...string) *process) {
	t.Helper()
	url := pgtest.Database(t)
	pool = pgtest.PoolOn(t, url)
	if _, err := pool.Exec(t.Context(), table); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), program)
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", path, "./"+program).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return pool, func(args ...string) *process {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), path, args...)
		cmd.Env = append(os.Environ(), "DATABASE_URL="+url)
		out, err := cmd.StderrPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		p := &process{t: t, cmd: cmd, lines: make(chan string, 1000)}
		go func() {
			defer close(p.lines)
			for s := bufio.NewScanner(out); s.Scan(); {
				p.lines <- s.Text()
			}
		}()
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		return p
	}
}

type process struct {
	t     *testing.T
	cmd   *exec.Cmd
	lines chan string
}

// await returns when the process has printed a line with that text.
func (p *process) await(text string) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), time.Minute)
	defer cancel()
	for {
		select {
		case line, more := <-p.lines:
			if strings.Contains(line, text) {
				return
			}
			if !more {
				p.t.Fatalf("it ended without %q", text)
			}
		case <-ctx.Done():
			p.t.Fatalf("no line with %q", text)
		}
	}
}

func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// TestFirstLock plays the tutorial: A is suspended while it thinks, B takes over, and A's write is refused.
func TestFirstLock(t *testing.T) {
	t.Parallel()
	pool, start := tutorial(t, "firstlock", "CREATE TABLE accounts (id int PRIMARY KEY, balance int NOT NULL); INSERT INTO accounts VALUES (17, 100)")
	a := start("-name", "A", "-think", "2s")
	a.await("read the balance 100")
	a.signal(syscall.SIGSTOP)
	b := start("-name", "B")
	b.await("read the balance 100")
	b.await("wrote the balance 90")
	a.signal(syscall.SIGCONT)
	a.await("stale")
	if err := a.cmd.Wait(); a.cmd.ProcessState.ExitCode() != 1 {
		t.Errorf("A: %v", err)
	}
	var balance int
	if err := pool.QueryRow(t.Context(), "SELECT balance FROM accounts").Scan(&balance); err != nil || balance != 90 {
		t.Errorf("%d, %v", balance, err)
	}
}

// TestNightlyJob plays the tutorial: three replicas make one report for each tick, and another one makes it
// if its maker is killed.
func TestNightlyJob(t *testing.T) {
	t.Parallel()
	pool, start := tutorial(t, "nightly", "CREATE TABLE reports (tick timestamptz PRIMARY KEY, replica text NOT NULL)")
	replicas := map[string]*process{}
	for _, name := range []string{"A", "B", "C"} {
		replicas[name] = start("-name", name, "-every", "3s", "-work", "1s")
	}
	reports := func() (ticks []time.Time, last string) {
		if err := pool.QueryRow(t.Context(), "SELECT array_agg(tick ORDER BY tick), (array_agg(replica ORDER BY tick DESC))[1] FROM reports").Scan(&ticks, &last); err != nil {
			return nil, ""
		}
		return ticks, last
	}
	pgtest.Eventually(t, "two reports", func() bool { ticks, _ := reports(); return len(ticks) >= 2 })
	// The one that runs the next tick is killed while it works.
	var killed string
	pgtest.Eventually(t, "a run", func() bool {
		err := pool.QueryRow(t.Context(), "SELECT holder FROM pglock.schedules WHERE running IS NOT NULL").Scan(&killed)
		return err == nil
	})
	replicas[killed].signal(syscall.SIGKILL)
	before, _ := reports()
	pgtest.Eventually(t, "three more reports", func() bool { ticks, _ := reports(); return len(ticks) >= len(before)+3 })
	ticks, _ := reports()
	for i, tick := range ticks[1:] {
		if tick.Sub(ticks[i]) != 3*time.Second {
			t.Errorf("no report between %v and %v", ticks[i], tick)
		}
	}
	if !slices.IsSortedFunc(ticks, time.Time.Compare) {
		t.Errorf("%v", ticks)
	}
}
