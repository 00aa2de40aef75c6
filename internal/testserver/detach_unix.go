//go:build unix

package testserver

import (
	"os"
	"runtime"
	"syscall"
)

func detachedAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setsid: true}
}

// ownProgram returns the path of the running program. On Linux that works also after the go command removed it.
func ownProgram(string) (string, error) {
	if runtime.GOOS == "linux" {
		return "/proc/self/exe", nil
	}
	return os.Executable()
}
