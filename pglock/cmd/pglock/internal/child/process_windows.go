package child

import (
	"os"
	"syscall"

	"golang.org/x/sys/windows"
)

// Process is a command that was started. Only one goroutine may call its methods.
type Process struct {
	process *os.Process
	job     *job
	done    chan struct{}
	status  int // set before done is closed
}

// Start starts the command. On success the caller must call Close after Done is closed. On failure
// nothing runs.
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
	// A process that the command starts before this is not in the job.
	if err := j.add(process.Pid); err != nil {
		_ = process.Kill() // it may have ended, which makes add fail
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
		p.status = 1 // impossible: no other goroutine waits for it
		return
	}
	p.status = state.ExitCode()
}

// Done returns a channel that is closed when the command has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Stopped returns nil: Windows does not stop processes.
func (p *Process) Stopped() <-chan os.Signal { return nil }

// Status returns the command's exit status once Done is closed.
func (p *Process) Status() int { return p.status }

// Signaled returns false: on Windows signals do not end processes.
func (p *Process) Signaled() bool { return false }

// Signal sends Ctrl-Break to the group, the only signal that another group can receive.
func (p *Process) Signal(os.Signal) error {
	select {
	case <-p.done:
		return nil
	default:
		return windows.GenerateConsoleCtrlEvent(windows.CTRL_BREAK_EVENT, uint32(p.process.Pid))
	}
}

// Expired returns false: there is no supervisor.
func (p *Process) Expired() bool { return false }

// Terminate sends Ctrl-Break to the group.
func (p *Process) Terminate() error { return p.Signal(os.Interrupt) }

// Kill ends the command and all processes that it has started.
func (p *Process) Kill() error { return p.job.terminate() }

// GroupAlive reports whether the command or a process that it has started still runs.
func (p *Process) GroupAlive() bool { return p.job.active() > 0 }

// Alive is GroupAlive: the job contains all processes that the command has started.
func (p *Process) Alive() bool { return p.GroupAlive() }

// Remaining reports whether a process is left in the job. It returns no names, since a job only
// counts its processes.
func (p *Process) Remaining() (names []string, left bool) { return nil, p.GroupAlive() }

// Follow does nothing: Windows does not stop processes.
func (p *Process) Follow(os.Signal) (resume bool) { return false }

// Resume does nothing: Windows does not stop processes.
func (p *Process) Resume() error { return nil }

// Close leaves the remaining processes running. The command must have ended.
func (p *Process) Close() {
	p.job.keepProcesses()
	p.job.close()
}
