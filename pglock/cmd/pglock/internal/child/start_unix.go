//go:build unix && !linux

package child

import (
	"errors"
	"os"
	"syscall"
)

// system is empty: the command is this process's own child.
type system struct{}

// Start starts the command. On success the caller must receive from Stopped until Done is closed,
// and then call Close. On failure nothing runs.
//
// A process may have one command at a time, and no other children.
func Start(c Command) (*Process, error) {
	p := newProcess()
	attr := &syscall.SysProcAttr{Setpgid: true}
	if p.terminal.wantsForeground() {
		attr.Foreground, attr.Ctty = true, p.terminal.fd
		p.terminal.lentForeground = true
	}
	process, err := os.StartProcess(c.Path, c.Args, &os.ProcAttr{
		Env:   c.Env,
		Files: []*os.File{os.Stdin, os.Stdout, os.Stderr},
		Sys:   attr,
	})
	if err != nil {
		p.terminal.reclaim() // the foreground was set before the program could not be executed
		p.terminal.close()
		return nil, err
	}
	p.pid = process.Pid
	_ = process.Release() // runWait waits for it, since it sees stops too
	go p.runWait()
	return p, nil
}

// runWait waits for the end of the command, and reports its stops.
func (p *Process) runWait() {
	defer close(p.done)
	for {
		pid, status, err := wait4(syscall.WUNTRACED)
		switch {
		case err == nil && pid != p.pid:
		case err == nil && status.Stopped():
			p.stopped <- status.StopSignal()
		default: // an error is impossible: nothing else waits for the command
			p.status = status
			return
		}
	}
}

// signalOthers does nothing: processes that have left the group can't be found.
func (p *Process) signalOthers(...syscall.Signal) error { return nil }

// Expired returns false: there is no supervisor.
func (p *Process) Expired() bool { return false }

func (p *Process) terminated() {}

// GroupAlive reports whether a process is left in the group.
func (p *Process) GroupAlive() bool { return !errors.Is(syscall.Kill(-p.pid, 0), syscall.ESRCH) }

// Alive is GroupAlive: processes that have left the group can't be found.
func (p *Process) Alive() bool { return p.GroupAlive() }

// Remaining reports whether a process is left in the group. It returns no names, since the members
// of a group can't be listed.
func (p *Process) Remaining() (names []string, left bool) { return nil, p.GroupAlive() }

// Close takes the foreground of the terminal back. The command must have ended.
func (p *Process) Close() {
	p.terminal.reclaim()
	p.terminal.close()
}
