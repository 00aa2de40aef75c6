package testserver

import (
	"context"
	"errors"
	"os"
	"syscall"

	"github.com/pglock/pglock-go/internal/testserver/process"
)

// Windows has no such signals. Only sigKill is understood by signalAll.
const (
	sigStop     = syscall.Signal(-1)
	sigContinue = syscall.Signal(-2)
	sigKill     = syscall.SIGKILL
)

var errNoPause = errors.New("testserver: this system can't pause a process")

func signalAll(ids []process.ID, sig syscall.Signal) error {
	if sig != sigKill {
		return errNoPause
	}
	for _, id := range ids {
		if !id.Alive() {
			continue
		}
		if found, err := os.FindProcess(id.PID); err == nil {
			_ = found.Kill() // it may be gone already
		}
	}
	return nil
}

// shutdown asks a postmaster to end.
func (s *Server) shutdown(_ int, mode Mode) error {
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	return s.tool(ctx, "pg_ctl", "stop", "-W", "-D", s.data(), "-m", string(mode))
}
