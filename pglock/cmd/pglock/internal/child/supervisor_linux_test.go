package child

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
)

// These tests are not parallel: a process has one command at a time.

// startScript starts a shell script in an empty directory, and waits until it has written "ready".
func startScript(t *testing.T, script string) (p *Process, dir string) {
	t.Helper()
	dir = t.TempDir()
	p, err := Start(Command{Path: "/bin/sh", Args: []string{"sh", "-c", "cd \"$DIR\"\n" + script}, Env: append(os.Environ(), "DIR="+dir)})
	locktest.OK(t, err)
	t.Cleanup(func() {
		_ = p.Kill() // usually nothing is left
		<-p.Done
		p.Close()
	})
	pgtest.Eventually(t, "the script is ready", func() bool {
		_, err := os.Stat(filepath.Join(dir, "ready"))
		return err == nil
	})
	return p, dir
}

func pidIn(t *testing.T, dir, file string) int {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, file))
	locktest.OK(t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	locktest.OK(t, err)
	return pid
}

// touch creates a file that a script waits for.
func touch(t *testing.T, dir, file string) {
	t.Helper()
	locktest.OK(t, os.WriteFile(filepath.Join(dir, file), nil, 0o600))
}

// runs reports whether the process runs. A zombie does not run.
func runs(pid int) bool {
	_, ok := readProcess(pid)
	return ok
}

func waitFor(t *testing.T, what string, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(pgtest.Patience):
		t.Fatalf("not within %v: %s", pgtest.Patience, what)
	}
}

// daemon starts a process that has left the command's group, session and descendants.
const daemon = `(setsid sh -c 'trap "" TERM HUP; echo $$ > daemon; exec sleep 60' &)
	until test -s daemon; do sleep 0.02; done
	`

func TestSignalsToTheSupervisorDoNothing(t *testing.T) {
	p, dir := startScript(t, `echo > ready; until test -e go; do sleep 0.02; done; exit 3`)
	if stat, _ := readProcess(p.supervisor.Pid); stat.name != "lock-supervisor" || stat.group != p.supervisor.Pid {
		t.Errorf("the supervisor is %+v: by its name or its group it may be killed together with this process", stat)
	}
	for _, sig := range []syscall.Signal{
		syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGPIPE,
	} {
		locktest.OK(t, p.supervisor.Signal(sig))
	}
	touch(t, dir, "go")
	waitFor(t, "the command ends", p.Done)
	if p.Status != 3 || p.Signaled {
		t.Errorf("status %d", p.Status)
	}
	waitFor(t, "the supervisor reports that nothing is left", p.treeEnded)
}

// TestKilledSupervisor: the command is killed with the supervisor. Processes that it has started
// can still be found and ended.
func TestKilledSupervisor(t *testing.T) {
	p, dir := startScript(t, daemon+`echo > ready; exec sleep 60`)
	pid := pidIn(t, dir, "daemon")
	locktest.OK(t, p.supervisor.Kill())
	waitFor(t, "the command ends", p.Done)
	if p.Status != 128+int(syscall.SIGKILL) || !p.Signaled {
		t.Errorf("status %d", p.Status)
	}
	if left, _ := p.Remaining(); !p.Alive() || !slices.Equal(left, []string{"sleep (pid " + strconv.Itoa(pid) + ")"}) {
		t.Errorf("alive %v, %v is left, want %d", p.Alive(), left, pid)
	}
	if err := p.Terminate(); err != nil { // the daemon ignores it
		t.Error(err)
	}
	if !runs(pid) {
		t.Error("it has ended")
	}
	if err := p.Kill(); err != nil {
		t.Error(err)
	}
	waitFor(t, "the last process ends", p.treeEnded)
	if runs(pid) {
		t.Error("it runs on")
	}
}

// TestCloseKeepsOtherProcesses: Close ends at once, also if the supervisor is stopped.
func TestCloseKeepsOtherProcesses(t *testing.T) {
	for name, sig := range map[string]syscall.Signal{"running": syscall.SIGCONT, "stopped": syscall.SIGSTOP} {
		t.Run(name, func(t *testing.T) {
			p, dir := startScript(t, daemon+`echo > ready`)
			waitFor(t, "the command ends", p.Done)
			pid := pidIn(t, dir, "daemon")
			defer func() {
				_ = syscall.Kill(pid, syscall.SIGKILL)
				pgtest.Eventually(t, "the daemon has ended", func() bool { return !runs(pid) })
			}()
			if p.GroupAlive() || !p.Alive() {
				t.Errorf("group alive: %v, alive: %v", p.GroupAlive(), p.Alive())
			}
			locktest.OK(t, p.supervisor.Signal(sig))
			begin := time.Now()
			p.Close()
			p.Close()
			if took := time.Since(begin); took > time.Second {
				t.Errorf("Close took %v", took)
			}
			if !runs(pid) {
				t.Error("Close has ended the process that was left")
			}
		})
	}
}

// TestKillEndsAGrowingTree: Kill ends a tree that starts new processes all the time.
func TestKillEndsAGrowingTree(t *testing.T) {
	p, _ := startScript(t, `trap "" TERM
		grow() { while :; do setsid sh -c 'trap "" TERM HUP; setsid sleep 5 & sleep 0.05' & sleep 0.01; done; }
		grow & echo > ready; wait`)
	if err := p.Terminate(); err != nil {
		t.Error(err)
	}
	if !p.Alive() {
		t.Error("TERM has ended it")
	}
	pgtest.Eventually(t, "nothing is left", func() bool {
		_ = p.Kill()
		return !p.Alive()
	})
	waitFor(t, "the command ends", p.Done)
	if left, any := p.Remaining(); any {
		t.Errorf("%v is left", left)
	}
}

// TestStartFails: Start fails with the errors of os.StartProcess, and leaves nothing behind.
func TestStartFails(t *testing.T) {
	dir := t.TempDir()
	plain := filepath.Join(dir, "plain")
	locktest.OK(t, os.WriteFile(plain, []byte("exit"), 0o600))
	for path, want := range map[string]error{
		filepath.Join(dir, "none"): fs.ErrNotExist,
		plain:                      fs.ErrPermission,
		dir:                        fs.ErrPermission,
	} {
		p, err := Start(Command{Path: path, Args: []string{path}, Env: os.Environ()})
		if !errors.Is(err, want) || p != nil {
			t.Errorf("%s: %v, want %v", path, err, want)
		}
		var pathError *fs.PathError
		if !errors.As(err, &pathError) || pathError.Path != path {
			t.Errorf("%s: the error does not name it: %v", path, err)
		}
	}
	if left := descendants(os.Getpid(), 0); len(left) > 0 {
		t.Errorf("%v is left", left)
	}
	hooked.Store(false)
	defer hooked.Store(true)
	if _, err := Start(Command{Path: "/bin/true", Args: []string{"true"}}); !errors.Is(err, errNotHooked) {
		t.Errorf("without Hook: %v", err)
	}
}

func TestParseStat(t *testing.T) {
	t.Parallel()
	const rest = " 1 42 43 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 %T 0 12345 1 2 3"
	line := func(name, state, threads string) string {
		return "42 (" + name + ") " + state + strings.Replace(rest, "%T", threads, 1)
	}
	for text, want := range map[string]procStat{
		line("sh", "S", "1"):           {pid: 42, parent: 1, group: 42, name: "sh", start: "12345"},
		line("a ) R 7 (b", "S", "1"):   {pid: 42, parent: 1, group: 42, name: "a ) R 7 (b", start: "12345"},
		line("threads left", "Z", "3"): {pid: 42, parent: 1, group: 42, name: "threads left", start: "12345"},
		line("zombie", "Z", "1"):       {},
		line("dead", "X", "0"):         {},
		"":                             {},
		"42 (sh":                       {},
		"42 )sh( S 1 1":                {},
		"42 (sh) S 1 1":                {},
		"42 (sh) S x 42" + rest:        {},
	} {
		if got, ok := parseStat(42, text); got != want || ok != (want != procStat{}) {
			t.Errorf("%q: got %+v, %v", text, got, ok)
		}
	}
	if self, ok := readProcess(os.Getpid()); !ok || self.parent != os.Getppid() || self.group != syscall.Getpgrp() {
		t.Errorf("this process: %+v, %v", self, ok)
	}
}
