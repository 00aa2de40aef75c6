package testserver

import (
	"errors"
	"fmt"
	"time"

	"github.com/pglock/pglock-go/internal/testserver/process"
)

// Pause halts every process of the server, as a hung machine would: connections stay open, nothing answers, and new
// connections are taken by the kernel but never served. It returns when all of them are halted. Pausing twice does
// nothing. Windows can't.
func (s *Server) Pause() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return ErrClosed
	}
	if !s.running() {
		return errors.New("testserver: a server that is down can't be paused")
	}
	if s.paused {
		return nil
	}
	if err := s.halt(); err != nil {
		return errors.Join(err, s.signalMembers(sigContinue))
	}
	s.paused = true
	return nil
}

// halt stops the postmaster before it looks for the children, so that none is born in between.
func (s *Server) halt() error {
	postmaster, err := process.Find(s.run.pid)
	if err != nil {
		return fmt.Errorf("testserver: %w", err)
	}
	if err := signalAll([]process.ID{postmaster.ID}, sigStop); err != nil {
		return err
	}
	if err := waitStopped([]process.ID{postmaster.ID}); err != nil {
		return err
	}
	members, err := s.members()
	if err != nil {
		return err
	}
	if err := signalAll(members, sigStop); err != nil {
		return err
	}
	return waitStopped(members)
}

// Resume lets a paused server go on. It does nothing to one that runs.
func (s *Server) Resume() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return ErrClosed
	}
	return s.resume()
}

func (s *Server) resume() error {
	if !s.paused || !s.running() {
		s.paused = false
		return nil
	}
	if err := s.signalMembers(sigContinue); err != nil {
		return err
	}
	s.paused = false
	return nil
}

// waitStopped returns when each process is halted or gone: a signal is only a request until its receiver is
// scheduled.
func waitStopped(ids []process.ID) error {
	deadline := time.Now().Add(stopTimeout)
	for _, id := range ids {
		for {
			info, err := process.Find(id.PID)
			if err != nil || info.ID != id || info.Stopped {
				break
			}
			if time.Now().After(deadline) {
				return fmt.Errorf("testserver: process %d doesn't halt", id.PID)
			}
			pause(time.Millisecond)
		}
	}
	return nil
}
