package child

import (
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/windows"
)

type system struct {
	process *os.Process
	job     *job
}

// Start starts the command, and on failure leaves nothing running. On success the caller must call
// Close after Done is closed.
func Start(c Command) (*Process, error) {
	j, err := newJob()
	if err != nil {
		return nil, err
	}
	process, err := os.StartProcess(c.Path, c.Args, c.attr(&syscall.SysProcAttr{CreationFlags: windows.CREATE_NEW_PROCESS_GROUP}))
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
	p := &Process{Done: make(chan struct{}), system: system{process, j}}
	go p.run()
	return p, nil
}

func (p *Process) run() {
	defer close(p.Done)
	state, err := p.process.Wait()
	if err != nil {
		p.Status = 1 // impossible: no other goroutine waits for it
		return
	}
	p.Status = state.ExitCode()
}

// Signal sends Ctrl-Break to the group, the only signal that another group can receive.
func (p *Process) Signal(os.Signal) error {
	select {
	case <-p.Done: // another process may have the number of the group by now
		return nil
	default:
		return windows.GenerateConsoleCtrlEvent(windows.CTRL_BREAK_EVENT, uint32(p.process.Pid))
	}
}

// Terminate sends Ctrl-Break to the group.
func (p *Process) Terminate() error { return p.Signal(os.Interrupt) }

// Kill ends the command and all processes that it has started.
func (p *Process) Kill() error { return windows.TerminateJobObject(p.job.handle, 1) }

// GroupAlive reports whether the command or a process that it has started still runs.
func (p *Process) GroupAlive() bool { return p.job.active() > 0 }

// Follow does nothing: Windows does not stop processes.
func (p *Process) Follow(os.Signal) (resume bool) { return false }

// Resume does nothing: Windows does not stop processes.
func (p *Process) Resume() error { return nil }

// Close lets the remaining processes outlive the job, or ends them with it if that fails. It must
// be called after the end of the command.
func (p *Process) Close() {
	_ = p.job.limit(0)
	p.job.close()
}

// job is a job object with only one handle. The system ends its processes, and all that they start,
// when the handle is closed, and it closes the handle when this process ends.
type job struct{ handle windows.Handle }

func newJob() (*job, error) {
	handle, err := windows.CreateJobObject(nil, nil)
	if err != nil {
		return nil, err
	}
	j := &job{handle}
	if err := j.limit(windows.JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE); err != nil {
		j.close()
		return nil, err
	}
	return j, nil
}

func (j *job) limit(flags uint32) error {
	info := windows.JOBOBJECT_EXTENDED_LIMIT_INFORMATION{
		BasicLimitInformation: windows.JOBOBJECT_BASIC_LIMIT_INFORMATION{LimitFlags: flags},
	}
	_, err := windows.SetInformationJobObject(j.handle, windows.JobObjectExtendedLimitInformation,
		uintptr(unsafe.Pointer(&info)), uint32(unsafe.Sizeof(info)))
	return err
}

func (j *job) add(pid int) error {
	process, err := windows.OpenProcess(windows.PROCESS_SET_QUOTA|windows.PROCESS_TERMINATE, false, uint32(pid))
	if err != nil {
		return err
	}
	defer windows.CloseHandle(process)
	return windows.AssignProcessToJobObject(j.handle, process)
}

// active returns the number of running processes of the job.
func (j *job) active() int {
	var info struct { // JOBOBJECT_BASIC_ACCOUNTING_INFORMATION
		userTime, kernelTime, periodUserTime, periodKernelTime int64
		pageFaults, total, active, terminated                  uint32
	}
	err := windows.QueryInformationJobObject(j.handle, windows.JobObjectBasicAccountingInformation,
		uintptr(unsafe.Pointer(&info)), uint32(unsafe.Sizeof(info)), nil)
	if err != nil {
		return 0
	}
	return int(info.active)
}

func (j *job) close() { _ = windows.CloseHandle(j.handle) }
