//go:build !linux

package pglock_test

import "time"

// machineTime returns the time in nanoseconds, by a clock that all processes of the machine share.
func machineTime() int64 { return time.Now().UnixNano() }
