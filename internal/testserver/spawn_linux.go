package testserver

import "syscall"

// serverAttr puts a server into a session of its own, which Ctrl-C doesn't reach, and has the kernel end it together
// with the thread that starts it. So the caller must hold on to its thread, see runtime.LockOSThread. SIGQUIT is
// PostgreSQL's immediate shutdown: the children end too, and nothing is left in shared memory.
func serverAttr(a *account) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setsid: true, Credential: a.credential(), Pdeathsig: syscall.SIGQUIT}
}

// toolAttr does the same for a short-lived program like initdb.
func toolAttr(a *account) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setsid: true, Credential: a.credential(), Pdeathsig: syscall.SIGKILL}
}
