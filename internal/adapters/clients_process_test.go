//go:build linux

package adapters_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
)

const (
	clientDir    = examples + "clients/"
	clientHelper = "testdata/clients/"

	// treeVariable marks a process and its descendants, even after their parents have ended.
	treeVariable = "PGLOCK_TEST_CLIENT_TREE"
)

// python returns the path of a Python with psycopg2.
func python(t *testing.T) (program string) {
	t.Helper()
	pgtest.NeedTool(t, "python", func() (err error) {
		for _, name := range []string{"python3", "/usr/bin/python3"} { // the second one has the system's packages
			if err = exec.Command(name, "-c", "import psycopg2").Run(); err == nil {
				program, err = exec.LookPath(name)
				return err
			}
		}
		return fmt.Errorf("python3 with psycopg2: %w: testdata/setup.sh python installs it", err)
	})
	return program
}

// bash returns the path of the shell, and needs psql too.
func bash(t *testing.T) (program string) {
	t.Helper()
	pgtest.Program(t, "psql")
	pgtest.NeedTool(t, "bash", func() (err error) { program, err = exec.LookPath("bash"); return err })
	return program
}

// clientKinds are the example clients. Each returns the command that holds a lock as the lines of
// its standard input direct: see testdata/clients.
var clientKinds = map[string]func(t *testing.T, url, name string) []string{
	"python": func(t *testing.T, url, name string) []string {
		t.Helper()
		return []string{python(t), clientHelper + "worker.py", url, name, "listen=0"}
	},
	"python listening": func(t *testing.T, url, name string) []string {
		t.Helper()
		return []string{python(t), clientHelper + "worker.py", url, name, "listen=1"}
	},
	"shell": func(t *testing.T, _, name string) []string {
		t.Helper()
		return []string{bash(t), clientDir + "pglock.sh", name, clientHelper + "worker.sh"}
	},
}

// TestShellEvaluatesNoEnvironment: bash runs commands that stand in a number that it computes with,
// and PGLOCK_TTL may come from elsewhere (sudo's env_keep, the variables of a CI). The script
// refuses what is not a TTL. The control computes with one of the values.
func TestShellEvaluatesNoEnvironment(t *testing.T) {
	t.Parallel()
	program := bash(t)
	ctx, cancel := context.WithTimeout(t.Context(), pgtest.Patience/4) // a script that accepts the value waits for the database
	defer cancel()
	run := func(ttl string, args ...string) (out string, status int) {
		t.Helper()
		cmd := exec.CommandContext(ctx, program, args...)
		cmd.Env = append(os.Environ(), "PGLOCK_TTL="+ttl, "PGHOST=127.0.0.1", "PGPORT=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
		both, err := cmd.CombinedOutput()
		if cmd.ProcessState == nil {
			t.Fatal(err)
		}
		return string(both), cmd.ProcessState.ExitCode()
	}
	made := filepath.Join(t.TempDir(), "made")
	attack := "main[$(touch " + made + ")0]"
	for _, ttl := range []string{attack, "2", "030", "0x10", " 30", "30 ", "3.5", "-30", "30\n", "1e3", "99999999999999999999", "main"} {
		out, status := run(ttl, clientDir+"pglock.sh", "n", "true")
		if status != 64 || !strings.Contains(out, "whole seconds") || strings.Count(out, "\n") != 1 {
			t.Errorf("PGLOCK_TTL=%q: status %d: %s", ttl, status, out)
		}
	}
	if _, err := os.Stat(made); err == nil {
		t.Error("the script has run the command in PGLOCK_TTL")
	}
	if out, status := run(attack, "-c", `main=1; : $((PGLOCK_TTL / 3))`); status != 0 {
		t.Errorf("control: %d, %s", status, out)
	}
	if _, err := os.Stat(made); err != nil {
		t.Errorf("control: bash ran no command: %v", err)
	}
}

// clientProcess is a process and its descendants.
type clientProcess struct {
	t     *testing.T
	cmd   *exec.Cmd
	mark  string
	stdin io.WriteCloser
	lines chan string  // of its standard output; closed at its end
	log   bytes.Buffer // its standard error, which is told when it has ended
}

// startHolder starts a client that waits for the lock, with a TTL in seconds.
func startHolder(t *testing.T, kind, url, name string, ttl int) *clientProcess {
	t.Helper()
	args := clientKinds[kind](t, url, name)
	if kind != "shell" {
		args = append(args, fmt.Sprint("ttl=", ttl))
	}
	return startClient(t, url, args, fmt.Sprint("PGLOCK_TTL=", ttl))
}

func startClient(t *testing.T, url string, args []string, env ...string) *clientProcess {
	t.Helper()
	server, err := pgx.ParseConfig(url)
	locktest.OK(t, err)
	path := os.Getenv("PATH")
	if psql, err := exec.LookPath("psql"); err != nil || psql == "" {
		path = filepath.Dir(pgtest.Program(t, "psql")) + ":" + path
	}
	lib, err := filepath.Abs(clientDir)
	locktest.OK(t, err)
	p := &clientProcess{t: t, mark: treeVariable + "=" + rand.Text(), lines: make(chan string, 1000)}
	p.cmd = exec.Command(args[0], args[1:]...)
	p.cmd.Env = append(os.Environ(), append(env, p.mark, "PATH="+path, "PYTHONPATH="+lib, "PYTHONDONTWRITEBYTECODE=1",
		"PGHOST="+server.Host, fmt.Sprint("PGPORT=", server.Port), "PGUSER="+server.User, "PGPASSWORD="+server.Password,
		"PGDATABASE="+server.Database, "PGSSLMODE=disable")...)
	p.cmd.Stderr = &p.log
	p.cmd.WaitDelay = time.Second // a lingering descendant has its standard error
	p.stdin, err = p.cmd.StdinPipe()
	locktest.OK(t, err)
	out, err := p.cmd.StdoutPipe()
	locktest.OK(t, err)
	locktest.OK(t, p.cmd.Start())
	go func() {
		defer close(p.lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			p.lines <- s.Text()
		}
	}()
	t.Cleanup(func() {
		p.signal(syscall.SIGKILL)
		_ = p.cmd.Wait() // killed
		if t.Failed() && p.log.Len() > 0 {
			t.Logf("%q: %s", args, p.log.String())
		}
	})
	return p
}

// signal sends a signal to the process and its descendants. It stops them first, so that none
// escapes.
func (p *clientProcess) signal(s syscall.Signal) {
	p.t.Helper()
	var all []int
	for len(all) < len(p.tree()) {
		all = p.tree()
		for _, pid := range all {
			if s != syscall.SIGCONT {
				_ = syscall.Kill(pid, syscall.SIGSTOP) // it may have ended
			}
		}
	}
	for _, pid := range all {
		_ = syscall.Kill(pid, s)
	}
}

// tree returns the live processes with the mark in their environment.
func (p *clientProcess) tree() (all []int) {
	dirs, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, file := range dirs {
		env, _ := os.ReadFile(file) // empty for a zombie, and for processes of others
		if slices.Contains(strings.Split(string(env), "\x00"), p.mark) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			all = append(all, pid)
		}
	}
	return all
}

func (p *clientProcess) send(line string) {
	p.t.Helper()
	if _, err := io.WriteString(p.stdin, line+"\n"); err != nil {
		p.t.Logf("%s: %v", line, err) // the process has ended
	}
}

// next returns the next line of its output, and "" after the last one.
func (p *clientProcess) next() string {
	p.t.Helper()
	return locktest.Receive(p.t, p.lines)
}

func (p *clientProcess) expect(want string) {
	p.t.Helper()
	if got := p.next(); got != want {
		p.t.Fatalf("it prints %q, not %q", got, want)
	}
}

// held waits for the grant, and returns its token.
func (p *clientProcess) held() (token int64) {
	p.t.Helper()
	line := p.next()
	if _, err := fmt.Sscanf(line, "held %d", &token); err != nil {
		p.t.Fatalf("it prints %q", line)
	}
	return token
}

// write writes under guard, and returns the outcome. Between the local check and the guard it calls
// pause.
func (p *clientProcess) write(pause func()) string {
	p.t.Helper()
	p.send("write")
	p.expect("checked")
	pause()
	p.send("")
	return p.next()
}
