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

// ends reports whether the signal ends programs by default.
func isTermination(sig os.Signal) bool {
	return sig == syscall.SIGHUP || sig == syscall.SIGINT || sig == syscall.SIGQUIT || sig == syscall.SIGTERM
}

// continues reports whether the signal continues a stopped process.
func isContinue(sig os.Signal) bool { return sig == syscall.SIGCONT }

// passedOn reports whether pglock forwards the signal to the command.
func isForwarded(sig os.Signal) bool { return sig != syscall.SIGPIPE }
