//go:build unix

package main

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
)

func pidIn(t *testing.T, text string) int {
	t.Helper()
	pid, err := strconv.Atoi(strings.TrimSpace(text))
	if err != nil || pid < 2 {
		t.Fatalf("no pid: %q", text)
	}
	return pid
}

// pid waits until a script has written its pid to the file.
func (c *cli) pid(file string) int {
	c.t.Helper()
	path := filepath.Join(c.dir, file)
	pgtest.Eventually(c.t, patience, file+" is written", func() bool { return strings.HasSuffix(read(c.t, path), "\n") })
	pid := pidIn(c.t, read(c.t, path))
	killOnCleanup(c.t, pid)
	return pid
}

// touch creates a file that a script waits for.
func (c *cli) touch(file string) {
	c.t.Helper()
	locktest.OK(c.t, os.WriteFile(filepath.Join(c.dir, file), nil, 0o600))
}

func alive(pid int) bool { return !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) }

func gone(t *testing.T, pid int) {
	t.Helper()
	pgtest.Eventually(t, patience, "process "+strconv.Itoa(pid)+" is gone", func() bool { return !alive(pid) })
}

// killOnCleanup kills a process that a failing test may leave.
func killOnCleanup(t *testing.T, pid int) {
	t.Helper()
	t.Cleanup(func() {
		_ = syscall.Kill(pid, syscall.SIGKILL) // usually it has ended
	})
}

func (p *call) signal(sig syscall.Signal) {
	p.t.Helper()
	locktest.OK(p.t, p.cmd.Process.Signal(sig))
}

// end ends the command by TERM, and waits for pglock.
func (p *call) end() result {
	p.t.Helper()
	p.signal(syscall.SIGTERM)
	return p.wait()
}
