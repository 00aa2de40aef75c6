//go:build unix && !linux

package main

import "syscall"

// workerAttr puts a worker into a process group of its own, so that Ctrl-C reaches
// the parent alone. If the parent is killed, the worker ends when its standard
// input does; the system wakes a paused one whose group nobody looks after.
func workerAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
