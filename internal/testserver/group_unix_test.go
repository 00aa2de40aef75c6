//go:build unix

package testserver_test

import (
	"os/exec"
	"syscall"
)

// ownGroup makes the process the first of a group, as a shell does with a command line.
func ownGroup(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

func (a *actor) interruptGroup() error { return syscall.Kill(-a.cmd.Process.Pid, syscall.SIGINT) }
