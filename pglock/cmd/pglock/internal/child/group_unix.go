//go:build unix && !linux

package child

import "syscall"

// groupAttr starts a process group. This system can't tie its life to ours.
func groupAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// adoptOrphans does nothing: orphans are the first process's, which reaps them.
func adoptOrphans() {}
