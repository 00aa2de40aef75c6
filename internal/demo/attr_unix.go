//go:build unix

package main

import "syscall"

// workerAttr puts a worker into a process group of its own: Ctrl-C reaches only the parent, and the
// kernel wakes and hangs up a paused worker whose parent was killed.
func workerAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
