package main

import (
	"syscall"
	"time"
)

func detached() *syscall.SysProcAttr { return nil }

// processorTime is not known here.
func processorTime() time.Duration { return 0 }
