package child

import (
	"os"
	"syscall"

	"golang.org/x/sys/windows"
)

// Process is a command that was started. Its methods are for one goroutine.
type Process struct {
	process *os.Process
	job     *job
	done    chan struct{}
	status  int // set before done is closed
}

// Start starts the command. On success the caller must call Close once Done is
// closed. On failure nothing runs.
func Start(c Command) (*Process, error) {
	j, err := newJob()
	if err != nil {
		return nil, err
	}
	process, err := os.StartProcess(c.Path, c.Args, &os.ProcAttr{
		Env:   c.Env,
		Files: []*os.File{os.Stdin, os.Stdout, os.Stderr},
		Sys:   &syscall.SysProcAttr{CreationFlags: windows.CREATE_NEW_PROCESS_GROUP},
	})
	if err != nil {
		j.close()
		return nil, err
	}
	// What the command starts in the moment before this is not in the job.
	if err := j.add(process.Pid); err != nil {
		_ = process.Kill() // it may have ended already, which is why add failed
		_, _ = process.Wait()
		j.close()
		return nil, err
	}
	p := &Process{process: process, job: j, done: make(chan struct{})}
	go p.run()
	return p, nil
}

func (p *Process) run() {
	defer close(p.done)
	state, err := p.process.Wait()
	if err != nil {
		p.status = 1 // nobody else waits for it, so this can't be
		return
	}
	p.status = state.ExitCode()
}

// Done returns a channel that is closed when the command has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Stopped returns nil: nothing stops processes here.
func (p *Process) Stopped() <-chan os.Signal { return nil }

// Status returns the command's exit status once Done is closed.
func (p *Process) Status() int { return p.status }

// Signaled reports false: signals don't end processes here.
func (p *Process) Signaled() bool { return false }

// Signal sends Ctrl-Break to the group, the one signal that a group of its own gets.
func (p *Process) Signal(os.Signal) error {
	select {
	case <-p.done:
		return nil
	default:
		return windows.GenerateConsoleCtrlEvent(windows.CTRL_BREAK_EVENT, uint32(p.process.Pid))
	}
}

// Terminate asks the group to end.
func (p *Process) Terminate() error { return p.Signal(os.Interrupt) }

// Kill ends the command, and all that it has started, without asking.
func (p *Process) Kill() error { return p.job.terminate() }

// GroupAlive reports whether the command or a process that it has started is left.
func (p *Process) GroupAlive() bool { return p.job.active() > 0 }

// Follow does nothing: nothing stops processes here.
func (p *Process) Follow(os.Signal) (resume bool) { return false }

// Resume does nothing: nothing stops processes here.
func (p *Process) Resume() error { return nil }

// Close lets go of what is left of the group. The command must have ended.
func (p *Process) Close() {
	p.job.spare()
	p.job.close()
}
