//go:build !linux && !darwin

package testserver

import (
	"errors"
	"io"
	"os"
	"syscall"
)

// account is the caller: only root on Unix runs servers as another user.
type account struct{ name string }

func serverAccount() (account, error)                 { return account{}, nil }
func (account) own(string) error                      { return nil }
func (account) attr() *syscall.SysProcAttr            { return nil }
func tryLock(*os.File) (bool, error)                  { return false, nil } // so nothing is swept
func startKeeper(string, *os.File) (io.Closer, error) { return nil, nil }
func removeSharedMemory(string)                       {}
func halt(int) error                                  { return errors.ErrUnsupported }
func resume(int) error                                { return errors.ErrUnsupported }
