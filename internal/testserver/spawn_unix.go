//go:build unix && !linux

package testserver

import "syscall"

// serverAttr puts a server into a session of its own, which Ctrl-C doesn't reach. This system can't tie a child's
// life to its parent's; the supervisor or the keeper ends the server.
func serverAttr(a *account) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setsid: true, Credential: a.credential()}
}

func toolAttr(a *account) *syscall.SysProcAttr { return serverAttr(a) }
