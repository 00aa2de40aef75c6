package main

import (
	"os"
	"syscall"
)

// received are Ctrl-C and Ctrl-Break (os.Interrupt), and the end of the console,
// of the session or of the system (SIGTERM).
var received = []os.Signal{os.Interrupt, syscall.SIGTERM}

var stops []os.Signal

func ends(os.Signal) bool { return true }

func continues(os.Signal) bool { return false }

func passedOn(os.Signal) bool { return true }
