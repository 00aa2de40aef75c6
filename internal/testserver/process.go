package testserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/shirou/gopsutil/v4/process"
)

const (
	stopTimeout = 30 * time.Second
	pidFile     = "postmaster.pid"
)

// members returns the living processes of a server, or of all servers in a home: programs that have
// the directory in their arguments, and then the children of these.
func members(dir string) ([]*process.Process, error) {
	all, err := process.Processes()
	if err != nil {
		return nil, fmt.Errorf("testserver: %w", err)
	}
	var parents, children []*process.Process
	for _, p := range all {
		line, err := p.Cmdline() // empty for a zombie
		if err == nil && strings.Contains(line, dir+string(filepath.Separator)) && int(p.Pid) != os.Getpid() {
			parents = append(parents, p)
		}
	}
	for _, p := range all {
		parent, err := p.Ppid()
		isChild := func(q *process.Process) bool { return q.Pid == parent }
		if err == nil && slices.ContainsFunc(parents, isChild) && alive(p) {
			children = append(children, p)
		}
	}
	return append(parents, children...), nil
}

// alive does not use IsRunning, which compares start times. In a container these are computed from
// the wall clock, which may jump: a living process is then taken for another one.
func alive(p *process.Process) bool {
	exists, err := process.PidExists(p.Pid)
	status, _ := p.Status() // unknown on Windows
	return exists && err == nil && !slices.Contains(status, process.Zombie)
}

// Suspend halts a process as SIGSTOP does. It returns when the process has halted: a signal is only
// a request until then.
func Suspend(pid int) error {
	p, err := process.NewProcess(int32(pid))
	if err == nil {
		err = suspend(p)
	}
	return err
}

// Resume continues a process that Suspend halted.
func Resume(pid int) error {
	p, err := process.NewProcess(int32(pid))
	if err == nil {
		err = p.Resume()
	}
	return err
}

func suspend(all ...*process.Process) error {
	for _, p := range all {
		if err := p.Suspend(); err != nil && alive(p) {
			return fmt.Errorf("testserver: suspend process %d: %w", p.Pid, err)
		}
	}
	return await(all, "halt", func(p *process.Process) bool {
		status, err := p.Status()
		return err != nil || slices.Contains(status, process.Stop) || !alive(p)
	})
}

// suspendServer halts all processes of a server and returns them. The second round halts children
// that the postmaster started before it was halted itself.
func suspendServer(dir string) (all []*process.Process, err error) {
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
func (s *Server) resume() ([]*process.Process, error) {
	all, err := members(s.dir)
	for _, p := range all {
		if failed := p.Resume(); failed != nil && alive(p) {
			err = errors.Join(err, fmt.Errorf("testserver: resume process %d: %w", p.Pid, failed))
		}
	}
	return all, err
}

// await returns when each process has reached the state: a signal is only a request until then.
func await(all []*process.Process, what string, reached func(*process.Process) bool) error {
	for _, p := range all {
		if !poll(context.Background(), stopTimeout, func() bool { return reached(p) }) {
			return fmt.Errorf("testserver: process %d does not %s", p.Pid, what)
		}
	}
	return nil
}

// crash kills all processes of a server, or of all servers in a home, and returns when they are
// gone. It also removes what a killed server leaves outside of its data.
func crash(dir string) error {
	all, err := suspendServer(dir)
	for _, p := range all {
		_ = p.Kill() // the wait below shows a failure
	}
	err = errors.Join(err, await(all, "end", func(p *process.Process) bool { return !alive(p) }))
	pids, _ := filepath.Glob(filepath.Join(dir, dataName, pidFile))
	more, _ := filepath.Glob(filepath.Join(dir, "*", dataName, pidFile))
	for _, path := range append(pids, more...) {
		removeSharedMemory(filepath.Dir(path))
		// A zombie that its parent never collects would keep the next start from using the data.
		_ = os.Remove(path)
	}
	return err
}
