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

// pid waits until a script has written its pid to the file.
func (c *cli) pid(file string) int {
	c.t.Helper()
	path := filepath.Join(c.dir, file)
	pgtest.Eventually(c.t, file+" is written", func() bool { return strings.HasSuffix(read(c.t, path), "\n") })
	pid, err := strconv.Atoi(strings.TrimSpace(read(c.t, path)))
	locktest.OK(c.t, err)
	process, err := os.FindProcess(pid)
	locktest.OK(c.t, err)
	c.t.Cleanup(func() { _ = process.Kill() }) // usually it has ended; the handle does not reach a later process of that number
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
	pgtest.Eventually(t, "process "+strconv.Itoa(pid)+" is gone", func() bool { return !alive(pid) })
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
