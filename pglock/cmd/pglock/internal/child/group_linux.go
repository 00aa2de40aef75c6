package child

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// groupAttr starts a process group, and has the kernel kill its first process
// when the thread that started it ends.
func groupAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// adoptOrphans makes this process the parent of what the command's descendants
// leave behind when they end. So it learns at once when such a process has ended;
// the first process of a container may never take notice. Failing is no harm.
func adoptOrphans() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }
