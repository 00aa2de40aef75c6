//go:build unix

package main

import (
	"os"
	"syscall"
)

// received are the signals that pglock handles. SIGPIPE is among them because a
// message to a closed stderr must not end pglock; it can't just be ignored, since
// the command would inherit that.
var received = []os.Signal{
	syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM,
	syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGCONT, syscall.SIGPIPE,
}

// stops are handled once there is a command that must stop before pglock does;
// until then they stop pglock alone.
var stops = []os.Signal{syscall.SIGTSTP}

// ends reports whether programs end by the signal unless they handle it.
func ends(sig os.Signal) bool {
	return sig == syscall.SIGHUP || sig == syscall.SIGINT || sig == syscall.SIGQUIT || sig == syscall.SIGTERM
}

// continues reports whether the signal comes after this process was stopped.
func continues(sig os.Signal) bool { return sig == syscall.SIGCONT }

// passedOn reports whether the signal is meant for the command as well.
func passedOn(sig os.Signal) bool { return sig != syscall.SIGPIPE }
