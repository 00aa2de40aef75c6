package testserver

import "syscall"

// serverAttr keeps Ctrl-C away from a server.
func serverAttr(*account) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{CreationFlags: syscall.CREATE_NEW_PROCESS_GROUP, HideWindow: true}
}

func toolAttr(a *account) *syscall.SysProcAttr { return serverAttr(a) }
