package testserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

const (
	stopTimeout = 30 * time.Second
	pidFile     = "postmaster.pid"

	halted = 'T' // a state of ps and of /proc
	zombie = 'Z'
)

// process is what the system says about a process.
type process struct {
	pid, parent int
	state       byte   // a letter of ps; Windows has none
	args        string // separated by blanks
}

// members returns the living processes of a server, or of all servers in a home: programs that have
// the directory in their arguments, and then the children of these.
func members(dir string) ([]process, error) {
	all, err := processes()
	if err != nil {
		return nil, fmt.Errorf("testserver: %w", err)
	}
	var parents, kids []process
	for _, p := range all {
		if p.state != zombie && p.pid != os.Getpid() && strings.Contains(p.args, dir+string(filepath.Separator)) {
			parents = append(parents, p)
		}
	}
	for _, p := range all {
		isChild := func(q process) bool { return q.pid == p.parent }
		if p.state != zombie && slices.ContainsFunc(parents, isChild) {
			kids = append(kids, p)
		}
	}
	return append(parents, kids...), nil
}

// alive reports whether the process exists and is no zombie.
func (p process) alive() bool {
	now, err := find(p.pid)
	return err == nil && now.state != zombie
}

// Suspend halts a process as SIGSTOP does. It returns when the process has halted: a signal is only
// a request until then. Windows can't do it.
func Suspend(pid int) error { return suspend(process{pid: pid}) }

// Resume continues a process that Suspend halted.
func Resume(pid int) error { return resume(pid) }

func suspend(all ...process) error {
	for _, p := range all {
		if err := halt(p.pid); err != nil && p.alive() {
			return fmt.Errorf("testserver: suspend process %d: %w", p.pid, err)
		}
	}
	return await(all, "halt", func(p process) bool {
		now, err := find(p.pid)
		return err != nil || now.state == halted || now.state == zombie
	})
}

// suspendServer halts all processes of a server and returns them. The second round halts children
// that the postmaster started before it was halted itself.
func suspendServer(dir string) (all []process, err error) {
	for range 2 {
		if all, err = members(dir); err == nil {
			err = suspend(all...)
		}
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

// resume continues all processes of the server, and returns them.
func (s *Server) resume() ([]process, error) {
	all, err := members(s.dir)
	for _, p := range all {
		if failed := resume(p.pid); failed != nil && runtime.GOOS != "windows" && p.alive() {
			err = errors.Join(err, fmt.Errorf("testserver: resume process %d: %w", p.pid, failed))
		}
	}
	return all, err
}

// await returns when each process has reached the state: a signal is only a request until then.
func await(all []process, what string, reached func(process) bool) error {
	for _, p := range all {
		if !Poll(context.Background(), stopTimeout, func() bool { return reached(p) }) {
			return fmt.Errorf("testserver: process %d does not %s", p.pid, what)
		}
	}
	return nil
}

// crash kills all processes of a server, or of all servers in a home, and returns when they are
// gone. It also removes what a killed server leaves outside of its data.
func crash(dir string) error {
	find := suspendServer // so that no process starts another one meanwhile
	if runtime.GOOS == "windows" {
		find = members
	}
	all, err := find(dir)
	for _, p := range all {
		if running, failed := os.FindProcess(p.pid); failed == nil {
			_ = running.Kill() // the wait below shows a failure
		}
	}
	err = errors.Join(err, await(all, "end", func(p process) bool { return !p.alive() }))
	pids, _ := filepath.Glob(filepath.Join(dir, dataName, pidFile))
	more, _ := filepath.Glob(filepath.Join(dir, "*", dataName, pidFile))
	for _, path := range append(pids, more...) {
		removeSharedMemory(filepath.Dir(path))
		// A zombie that its parent never collects would keep the next start from using the data.
		_ = os.Remove(path)
	}
	return err
}
