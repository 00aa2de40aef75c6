//go:build unix

package child

import (
	"errors"
	"os"
	"runtime"
	"syscall"
)

// Process is a command that was started. Its methods are for one goroutine.
type Process struct {
	pid      int // of the command, and of its group
	terminal *terminal
	stopped  chan os.Signal
	done     chan struct{}
	status   syscall.WaitStatus // set before done is closed
}

// Start starts the command. On success the caller must receive from Stopped until
// Done is closed, and then call Close. On failure nothing runs.
//
// There may be one command at a time, and no other child of this process: its end
// would be taken for that of an orphan, and nobody would learn of it.
func Start(c Command) (*Process, error) {
	p := &Process{
		terminal: openTerminal(),
		stopped:  make(chan os.Signal),
		done:     make(chan struct{}),
	}
	started := make(chan error)
	go p.run(c, started)
	if err := <-started; err != nil {
		p.terminal.close()
		return nil, err
	}
	return p, nil
}

// run starts the command and waits for it. All of that happens on one thread,
// which is this goroutine's alone: on Linux the kernel kills the command when the
// thread that started it ends.
func (p *Process) run(c Command, started chan<- error) {
	runtime.LockOSThread() // for good: the thread ends with the goroutine
	adoptOrphans()
	attr := groupAttr()
	if p.terminal.wanted() {
		attr.Foreground, attr.Ctty = true, p.terminal.fd
		p.terminal.given = true
	}
	process, err := os.StartProcess(c.Path, c.Args, &os.ProcAttr{
		Env:   c.Env,
		Files: []*os.File{os.Stdin, os.Stdout, os.Stderr},
		Sys:   attr,
	})
	if err != nil {
		p.terminal.reclaim() // where the program could not be executed, it was given before
		started <- err
		return
	}
	p.pid = process.Pid
	_ = process.Release() // waited for below, where stops are seen too
	started <- nil
	p.wait()
	close(p.done)
}

// wait returns when the command has ended. Any other child is an orphan that was
// adopted, and is taken leave of.
func (p *Process) wait() {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WUNTRACED, nil)
		switch {
		case errors.Is(err, syscall.EINTR), err == nil && pid != p.pid:
		case err == nil && status.Stopped():
			p.stopped <- status.StopSignal()
		default: // an error can't be: nobody else waits for the command
			p.status = status
			return
		}
	}
}

// Done returns a channel that is closed when the command has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Stopped receives the signal each time that one has stopped the command.
func (p *Process) Stopped() <-chan os.Signal { return p.stopped }

// Status returns, once Done is closed, the command's exit status, or 128 and the
// number of the signal that ended it.
func (p *Process) Status() int {
	if p.status.Signaled() {
		return 128 + int(p.status.Signal())
	}
	return p.status.ExitStatus()
}

// Signaled reports, once Done is closed, whether a signal ended the command.
func (p *Process) Signaled() bool { return p.status.Signaled() }

// Signal sends sig to the group. If nobody is left there, that is no error.
//
// The number of the group can't come to mean another one while a member lives.
// After the last has gone, pids would have to go round once before the next call.
func (p *Process) Signal(sig os.Signal) error {
	err := syscall.Kill(-p.pid, sig.(syscall.Signal))
	if errors.Is(err, syscall.ESRCH) {
		return nil
	}
	return err
}

// Terminate asks the group to end. Who is stopped is continued, to hear it.
func (p *Process) Terminate() error {
	return errors.Join(p.Signal(syscall.SIGTERM), p.Signal(syscall.SIGCONT))
}

// Kill ends the group without asking.
func (p *Process) Kill() error { return p.Signal(syscall.SIGKILL) }

// GroupAlive reports whether a process is left in the group.
func (p *Process) GroupAlive() bool {
	select {
	case <-p.done:
		reap()
	default: // wait does it
	}
	return !errors.Is(syscall.Kill(-p.pid, 0), syscall.ESRCH)
}

// reap takes leave of the dead among the orphans: they would count as members.
func reap() {
	for {
		if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); pid <= 0 && !errors.Is(err, syscall.EINTR) {
			return
		}
	}
}

// Close takes the terminal back. The command must have ended.
func (p *Process) Close() {
	p.terminal.reclaim()
	p.terminal.close()
}
