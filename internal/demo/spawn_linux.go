package main

import "syscall"

// workerAttr puts a worker into a process group of its own, so that Ctrl-C reaches
// the parent alone, and has the kernel end it with the thread that starts it.
func workerAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
