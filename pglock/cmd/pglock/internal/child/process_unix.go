//go:build unix

package child

import (
	"errors"
	"os"
	"syscall"
)

// newProcess returns a Process that is not started.
func newProcess() *Process {
	p := &Process{Stopped: make(chan os.Signal), Done: make(chan struct{})}
	p.terminal = openTerminal()
	return p
}

// start starts the command in its own process group, and in the foreground of the terminal if that
// is lent to it. The caller waits for its process id, because that also reports stops.
func (c Command) start(t *terminal, sys *syscall.SysProcAttr) (pid int, err error) {
	sys.Setpgid = true
	if t != nil && t.lent {
		sys.Foreground, sys.Ctty = true, t.fd
	}
	process, err := os.StartProcess(c.Path, c.Args, c.attr(sys))
	if err != nil {
		return 0, err
	}
	pid = process.Pid
	_ = process.Release() // an error would be about a handle, not about the command
	return pid, nil
}

// ended records the end of the command.
func (p *Process) ended(status syscall.WaitStatus) {
	p.Status, p.Signaled = status.ExitStatus(), status.Signaled()
	if p.Signaled {
		p.Status = 128 + int(status.Signal())
	}
	close(p.Done)
}

// Signal sends sig to the group, and returns nil if the group is empty.
func (p *Process) Signal(sig os.Signal) error { return signalGroup(p.pid, sig.(syscall.Signal)) }

// signalGroup sends sig to a group, which may be empty. The system does not reuse the group's
// number while a member lives, and after the end of the last one only when all other pids were
// used.
func signalGroup(group int, sig syscall.Signal) error {
	if err := syscall.Kill(-group, sig); !errors.Is(err, syscall.ESRCH) {
		return err
	}
	return nil
}

// Terminate sends TERM to the group and, on Linux, to all other descendants of the command, and
// continues stopped processes, so that they receive it.
func (p *Process) Terminate() error {
	defer p.terminated()
	return p.signalTree(syscall.SIGTERM, syscall.SIGCONT)
}

// Kill sends KILL to the same processes. A second call also ends processes that were being started
// during the first one.
func (p *Process) Kill() error { return p.signalTree(syscall.SIGKILL) }

// GroupAlive reports whether a process is left in the group.
func (p *Process) GroupAlive() bool { return !errors.Is(syscall.Kill(-p.pid, 0), syscall.ESRCH) }

// wait4 waits for a child, and repeats a call that is interrupted.
func wait4(options int) (pid int, status syscall.WaitStatus, err error) {
	for {
		pid, err = syscall.Wait4(-1, &status, options, nil)
		if !errors.Is(err, syscall.EINTR) {
			return pid, status, err
		}
	}
}
