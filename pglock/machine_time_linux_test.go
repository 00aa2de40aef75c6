package pglock_test

import "golang.org/x/sys/unix"

// machineTime returns the time in nanoseconds, by a clock that all processes of the machine share and
// that no program can set.
func machineTime() int64 {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		panic(err)
	}
	return now.Nano()
}
