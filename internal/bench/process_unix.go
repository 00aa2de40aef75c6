//go:build unix

package main

import (
	"syscall"
	"time"
)

// detached puts a process into a session of its own that Ctrl-C does not reach.
func detached() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }

// processorTime returns the processor time of this process.
func processorTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
