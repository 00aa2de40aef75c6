//go:build unix

package child

import (
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// terminal is the one that controls this session. A nil terminal has no foreground.
type terminal struct {
	fd    int
	own   int  // this process's group
	given bool // the command's group was put into the foreground
}

// openTerminal returns nil if the session has no terminal.
func openTerminal() *terminal {
	fd, err := unix.Open("/dev/tty", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	return &terminal{fd: fd, own: syscall.Getpgrp()}
}

// ours reports whether this process's group is in the foreground.
func (t *terminal) ours() bool {
	return t != nil && t.foreground() == t.own
}

// foreground returns the group in the foreground, or 0.
func (t *terminal) foreground() int {
	group, err := unix.IoctlGetInt(t.fd, unix.TIOCGPGRP)
	if err != nil {
		return 0
	}
	return group
}

// wanted reports whether the command shall begin in the foreground: it reads from
// the terminal, and no other end of a pipe has a claim to it.
func (t *terminal) wanted() bool {
	if !t.ours() {
		return false
	}
	if _, err := unix.IoctlGetInt(int(os.Stdin.Fd()), unix.TIOCGPGRP); err != nil {
		return false
	}
	out, err := os.Stdout.Stat()
	return err == nil && out.Mode()&os.ModeNamedPipe == 0
}

// give puts the command's group into the foreground, if this process is there.
func (t *terminal) give(group int) {
	if t == nil {
		return
	}
	switch t.foreground() {
	case group:
		t.given = true
	case t.own:
		t.given = t.set(group) == nil
	}
}

// reclaim undoes give. It fails only where the terminal is gone.
func (t *terminal) reclaim() {
	if t != nil && t.given {
		_ = t.set(t.own)
		t.given = false
	}
}

// set changes the foreground. From the background that is allowed only to those
// who ignore SIGTTOU. The command runs already, so it doesn't inherit that.
func (t *terminal) set(group int) error {
	signal.Ignore(syscall.SIGTTOU)
	return unix.IoctlSetPointerInt(t.fd, unix.TIOCSPGRP, group)
}

func (t *terminal) close() {
	if t != nil {
		_ = unix.Close(t.fd)
	}
}
