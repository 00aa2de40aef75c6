//go:build unix

package testserver

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/pglock/pglock-go/internal/testserver/process"
)

const (
	sigStop     = syscall.SIGSTOP
	sigContinue = syscall.SIGCONT
	sigKill     = syscall.SIGKILL
)

// signalAll signals each process that still lives.
func signalAll(ids []process.ID, sig syscall.Signal) error {
	for _, id := range ids {
		if !id.Alive() {
			continue
		}
		if err := syscall.Kill(id.PID, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("testserver: signal %v to %d: %w", sig, id.PID, err)
		}
	}
	return nil
}

// shutdown asks a postmaster to end.
func (s *Server) shutdown(pid int, mode Mode) error {
	sig := syscall.SIGINT
	if mode == Immediate {
		sig = syscall.SIGQUIT
	}
	if err := syscall.Kill(pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("testserver: stop: %w", err)
	}
	return nil
}
