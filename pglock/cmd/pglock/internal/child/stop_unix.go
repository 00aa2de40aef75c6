//go:build unix

package child

import (
	"os"
	"os/signal"
	"syscall"
	"time"
)

// orphaned is how long Follow waits for its own stop to take effect. The system
// ignores it where no shell is there to continue what was stopped.
const orphaned = 200 * time.Millisecond

// Follow does what the command's stop by sig asks for, and reports whether the
// command is now to be resumed.
//
//   - It stopped because it needs the terminal, which is ours to give: resume.
//   - Job control (Ctrl-Z, or a background job that needs the terminal): this
//     process's group stops, so that its shell sees it, and is continued by it.
//   - Otherwise somebody stopped just the command, for a reason: leave it, unless
//     it has the terminal, which then its user would not get back.
func (p *Process) Follow(sig os.Signal) (resume bool) {
	switch {
	case p.terminal == nil || sig == syscall.SIGSTOP && !p.terminal.given:
		return false
	case sig != syscall.SIGTSTP && p.terminal.ours():
		return true
	}
	p.terminal.given = false // the shell takes it
	continued := make(chan os.Signal, 1)
	signal.Notify(continued, syscall.SIGCONT)
	defer signal.Stop(continued)
	// Not SIGTSTP: once a Go program has been notified of it, it can't get the
	// default action back, which is to stop. SIGTTIN has it still.
	if err := syscall.Kill(0, syscall.SIGTTIN); err != nil {
		return false
	}
	// The stop may take effect a moment later, in any thread. Whichever of the
	// two is first here, this process runs (again).
	select {
	case <-continued:
	case <-time.After(orphaned):
	}
	return true
}

// Resume continues the command, in the foreground if this process is there.
func (p *Process) Resume() error {
	p.terminal.give(p.pid)
	return p.Signal(syscall.SIGCONT)
}
