//go:build unix

package main

import (
	"os"
	"syscall"
)

// handledSignals are the signals that pglock handles. SIGPIPE is among them because a message to a
// closed stderr must not end pglock. It is not ignored, because the command would inherit that.
var handledSignals = []os.Signal{
	syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM,
	syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGCONT, syscall.SIGPIPE,
}

// stopSignals are handled while a command runs, since the command must stop before pglock does.
// Before that they stop pglock alone.
var stopSignals = []os.Signal{syscall.SIGTSTP}

func isTermination(sig os.Signal) bool {
	return sig == syscall.SIGHUP || sig == syscall.SIGINT || sig == syscall.SIGQUIT || sig == syscall.SIGTERM
}

func isContinue(sig os.Signal) bool { return sig == syscall.SIGCONT }

func isForwarded(sig os.Signal) bool { return sig != syscall.SIGPIPE }
