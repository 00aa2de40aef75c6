//go:build unix

package child

import (
	"errors"
	"os"
	"syscall"
)

// Process is a command that was started. Only one goroutine may call its methods.
type Process struct {
	pid      int // of the command and of its process group
	terminal *terminal
	stopped  chan os.Signal
	done     chan struct{}      // closed when the command has ended
	status   syscall.WaitStatus // set before done is closed
	system                      // the fields of this operating system
}

// newProcess returns a Process that is not started.
func newProcess() *Process {
	return &Process{
		terminal: openTerminal(),
		stopped:  make(chan os.Signal),
		done:     make(chan struct{}),
	}
}

// Done returns a channel that is closed when the command has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Stopped returns a channel that receives the signal each time a signal has stopped the command.
func (p *Process) Stopped() <-chan os.Signal { return p.stopped }

// Status returns the command's exit status, or 128 plus the number of the signal that ended it.
// Done must be closed.
func (p *Process) Status() int {
	if p.status.Signaled() {
		return 128 + int(p.status.Signal())
	}
	return p.status.ExitStatus()
}

// Signaled reports whether a signal ended the command. Done must be closed.
func (p *Process) Signaled() bool { return p.status.Signaled() }

// Signal sends sig to the group. It returns nil if the group is empty.
//
// The system does not reuse the group's number while a member lives. After the end of the last
// member it can do so only after all other pids were used.
func (p *Process) Signal(sig os.Signal) error {
	err := syscall.Kill(-p.pid, sig.(syscall.Signal))
	if errors.Is(err, syscall.ESRCH) {
		return nil
	}
	return err
}

// Terminate sends TERM to the group and, on Linux, to all other descendants of the command. It
// continues stopped processes, so that they receive it.
func (p *Process) Terminate() error {
	defer p.terminated()
	return errors.Join(
		p.Signal(syscall.SIGTERM), p.Signal(syscall.SIGCONT),
		p.signalOthers(syscall.SIGTERM, syscall.SIGCONT),
	)
}

// Kill sends KILL to the same processes. Call it again for processes that were being started.
func (p *Process) Kill() error {
	return errors.Join(p.Signal(syscall.SIGKILL), p.signalOthers(syscall.SIGKILL))
}

// wait4 waits for a child. It repeats a call that is interrupted.
func wait4(options int) (pid int, status syscall.WaitStatus, err error) {
	for {
		pid, err = syscall.Wait4(-1, &status, options, nil)
		if !errors.Is(err, syscall.EINTR) {
			return pid, status, err
		}
	}
}
