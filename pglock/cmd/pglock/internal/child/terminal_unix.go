//go:build unix

package child

import (
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// terminal is the controlling terminal of this session. A nil terminal has no foreground.
type terminal struct {
	fd             int
	group          int  // this process's process group
	lentForeground bool // the command's group was moved to the foreground
}

// openTerminal returns the terminal, or nil if the session has none.
func openTerminal() *terminal {
	fd, err := unix.Open("/dev/tty", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	return &terminal{fd: fd, group: syscall.Getpgrp()}
}

// inForeground reports whether this process's group is in the foreground.
func (t *terminal) inForeground() bool {
	return t != nil && t.foreground() == t.group
}

// foreground returns the group in the foreground, or 0.
func (t *terminal) foreground() int {
	group, err := unix.IoctlGetInt(t.fd, unix.TIOCGPGRP)
	if err != nil {
		return 0
	}
	return group
}

// wantsForeground reports whether the command is to start in the foreground: its stdin is the
// terminal, and it is not part of a pipe.
func (t *terminal) wantsForeground() bool {
	if !t.inForeground() {
		return false
	}
	if _, err := unix.IoctlGetInt(int(os.Stdin.Fd()), unix.TIOCGPGRP); err != nil {
		return false
	}
	out, err := os.Stdout.Stat()
	return err == nil && out.Mode()&os.ModeNamedPipe == 0
}

// give moves the command's group to the foreground if this process is there.
func (t *terminal) give(group int) {
	if t == nil {
		return
	}
	switch t.foreground() {
	case group:
		t.lentForeground = true
	case t.group:
		t.lentForeground = t.set(group) == nil
	}
}

// reclaim moves this process's group back to the foreground. It fails only if the terminal is
// closed.
func (t *terminal) reclaim() {
	if t != nil && t.lentForeground {
		_ = t.set(t.group)
		t.lentForeground = false
	}
}

// set changes the foreground group. From the background only a process that ignores SIGTTOU may do
// so. The command has started, so it does not inherit that.
func (t *terminal) set(group int) error {
	signal.Ignore(syscall.SIGTTOU)
	return unix.IoctlSetPointerInt(t.fd, unix.TIOCSPGRP, group)
}

func (t *terminal) close() {
	if t != nil {
		_ = unix.Close(t.fd)
	}
}
