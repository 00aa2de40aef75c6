package testserver

import (
	"io"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/windows"
)

func detachedAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{CreationFlags: windows.DETACHED_PROCESS | windows.CREATE_NEW_PROCESS_GROUP, HideWindow: true}
}

// ownProgram returns a copy of the running program in dir: Windows doesn't let the go command remove a test's program
// while it runs. The copy can't remove itself either; the next run sweeps it.
func ownProgram(dir string) (string, error) {
	path, err := os.Executable()
	if err != nil {
		return "", err
	}
	from, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer from.Close()
	to, err := os.CreateTemp(dir, "program-*.exe")
	if err != nil {
		return "", err
	}
	if _, err := io.Copy(to, from); err != nil {
		to.Close()
		return "", err
	}
	return filepath.Clean(to.Name()), to.Close()
}
