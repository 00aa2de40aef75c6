package main

import (
	"os"
	"syscall"
)

// handledSignals are Ctrl-C and Ctrl-Break (os.Interrupt), and SIGTERM at the end of the console,
// of the session or of the system.
var handledSignals = []os.Signal{os.Interrupt, syscall.SIGTERM}

// stopSignals is empty: Windows has no job control.
var stopSignals []os.Signal

func isTermination(os.Signal) bool { return true }

func isContinue(os.Signal) bool { return false }

func isForwarded(os.Signal) bool { return true }
