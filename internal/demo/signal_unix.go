//go:build unix

package main

import (
	"os"
	"syscall"
)

const (
	sigStop     = syscall.SIGSTOP
	sigContinue = syscall.SIGCONT
)

// endSignals interrupt the demo. SIGPIPE: nobody reads the story any more.
var endSignals = []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE}

func checkSystem() error { return nil }
