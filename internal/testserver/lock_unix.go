//go:build unix

package testserver

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// lockFile reports whether it got an exclusive lock. Closing the file gives it back.
func lockFile(file *os.File) (bool, error) {
	for {
		err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		switch {
		case err == nil:
			return true, nil
		case errors.Is(err, syscall.EINTR):
		case errors.Is(err, syscall.EWOULDBLOCK):
			return false, nil
		default:
			return false, fmt.Errorf("testserver: lock %s: %w", file.Name(), err)
		}
	}
}
