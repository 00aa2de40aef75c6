package main

import (
	"errors"
	"os"
	"syscall"
)

// Windows has no such signals; checkSystem keeps them from being sent.
const (
	sigStop     = syscall.Signal(-1)
	sigContinue = syscall.Signal(-2)
)

var endSignals = []os.Signal{os.Interrupt}

func checkSystem() error {
	return errors.New("this system can't pause a process (SIGSTOP): run the demo on Linux, macOS or another Unix, or in WSL")
}
