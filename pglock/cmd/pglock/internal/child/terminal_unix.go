//go:build unix

package child

import (
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// stopTimeout is how long Follow waits for its own stop. The system ignores the stop if no shell
// could continue this process.
const stopTimeout = 200 * time.Millisecond

// terminal is the controlling terminal of this session, and nil if the session has none.
type terminal struct {
	fd    int
	group int  // this process's process group
	lent  bool // the command's group has the foreground, or is to start with it
}

func openTerminal() *terminal {
	fd, err := unix.Open("/dev/tty", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	return &terminal{fd: fd, group: syscall.Getpgrp()}
}

// foreground returns the group in the foreground, or 0.
func (t *terminal) foreground() int {
	group, err := unix.IoctlGetInt(t.fd, unix.TIOCGPGRP)
	if err != nil {
		return 0
	}
	return group
}

// lend decides whether the command is to start in the foreground: this process is there, stdin is
// the terminal, and the command is not part of a pipe.
func (t *terminal) lend() {
	if t == nil || t.foreground() != t.group {
		return
	}
	_, err := unix.IoctlGetInt(int(os.Stdin.Fd()), unix.TIOCGPGRP)
	out, statErr := os.Stdout.Stat()
	t.lent = err == nil && statErr == nil && out.Mode()&os.ModeNamedPipe == 0
}

// give moves the command's group to the foreground if this process is there.
func (t *terminal) give(group int) {
	if t == nil {
		return
	}
	switch t.foreground() {
	case group:
		t.lent = true
	case t.group:
		t.lent = t.set(group) == nil
	}
}

// close moves this process's group back to the foreground, and closes the terminal. The first fails
// only if the terminal was closed by others.
func (t *terminal) close() {
	if t == nil {
		return
	}
	if t.lent {
		_ = t.set(t.group)
	}
	_ = unix.Close(t.fd)
}

// set changes the foreground group, which from the background only a process that ignores SIGTTOU
// may do. The command has started before, so it does not inherit that.
func (t *terminal) set(group int) error {
	signal.Ignore(syscall.SIGTTOU)
	return unix.IoctlSetPointerInt(t.fd, unix.TIOCSPGRP, group)
}

// Follow reacts to a stop of the command by sig. It reports whether to resume the command:
//
//   - The command stopped because it needs the terminal, and this process is in the foreground:
//     resume.
//   - Job control (Ctrl-Z, or a background job that needs the terminal): this process's group stops
//     too, so that its shell sees it. When the shell continues it: resume.
//   - Otherwise another process stopped only the command: do not resume. If the command is in the
//     foreground, it is treated as job control, since its user could not regain the terminal.
func (p *Process) Follow(sig os.Signal) (resume bool) {
	t := p.terminal
	switch {
	case t == nil || sig == syscall.SIGSTOP && !t.lent:
		return false
	case sig != syscall.SIGTSTP && t.foreground() == t.group:
		return true
	}
	t.lent = false // the shell takes the foreground
	continued := make(chan os.Signal, 1)
	signal.Notify(continued, syscall.SIGCONT)
	defer signal.Stop(continued)
	// SIGTTIN instead of SIGTSTP: after a Go program was notified of SIGTSTP, it can't restore the
	// default action, which is to stop.
	if err := syscall.Kill(0, syscall.SIGTTIN); err != nil {
		return false
	}
	// The stop may take effect a moment later, in any thread. In both cases, and if both are ready,
	// this process runs, or runs again.
	select {
	case <-continued:
	case <-time.After(stopTimeout):
	}
	return true
}

// Resume continues the command, and moves it to the foreground if this process is there.
func (p *Process) Resume() error {
	p.terminal.give(p.pid)
	return p.Signal(syscall.SIGCONT)
}
