//go:build unix

package child

import (
	"os"
	"os/signal"
	"syscall"
	"time"
)

// stopTimeout is how long Follow waits for its own stop. The system ignores the stop if no shell
// could continue this process.
const stopTimeout = 200 * time.Millisecond

// Follow reacts to a stop of the command by sig. It reports whether to resume the command:
//
//   - The command stopped because it needs the terminal, and this process is in the foreground:
//     resume.
//   - Job control (Ctrl-Z, or a background job that needs the terminal): this process's group stops
//     too, so that its shell sees it. When the shell continues it: resume.
//   - Otherwise another process stopped only the command: do not resume. If the command is in the
//     foreground, it is treated as job control, since its user could not regain the terminal.
func (p *Process) Follow(sig os.Signal) (resume bool) {
	switch {
	case p.terminal == nil || sig == syscall.SIGSTOP && !p.terminal.lentForeground:
		return false
	case sig != syscall.SIGTSTP && p.terminal.inForeground():
		return true
	}
	p.terminal.lentForeground = false // the shell takes the foreground
	continued := make(chan os.Signal, 1)
	signal.Notify(continued, syscall.SIGCONT)
	defer signal.Stop(continued)
	// SIGTTIN instead of SIGTSTP: after a Go program was notified of SIGTSTP, it can't restore the
	// default action, which is to stop.
	if err := syscall.Kill(0, syscall.SIGTTIN); err != nil {
		return false
	}
	// The stop may take effect a moment later, in any thread. In both cases this process runs, or
	// runs again.
	select {
	case <-continued:
	case <-time.After(stopTimeout):
	}
	return true
}

// Resume continues the command. It moves the command to the foreground if this process is there.
func (p *Process) Resume() error {
	p.terminal.give(p.pid)
	return p.Signal(syscall.SIGCONT)
}
