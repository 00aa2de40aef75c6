package testserver

import (
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/pglock/pglock-go/internal/testserver/process"
)

// Mode is how a server is asked to end.
type Mode string

const (
	// Fast disconnects the clients and writes a checkpoint.
	Fast Mode = "fast"
	// Immediate doesn't write anything; the next start recovers from the write-ahead log.
	Immediate Mode = "immediate"
)

// Stop ends the server and returns when all its processes are gone. A paused server is resumed first. A server that
// doesn't end in time is killed, and that is an error. Stopping what is down does nothing.
func (s *Server) Stop(mode Mode) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return ErrClosed
	}
	return s.stop(mode)
}

func (s *Server) stop(mode Mode) error {
	if !s.running() {
		return nil
	}
	if err := s.resume(); err != nil {
		return err
	}
	members, err := s.members()
	if err != nil {
		return err
	}
	if err := s.shutdown(s.run.pid, mode); err != nil {
		return err
	}
	patience := time.NewTimer(stopTimeout)
	defer patience.Stop()
	select {
	case <-s.run.exited:
		return waitGone(members)
	case <-patience.C:
		return errors.Join(fmt.Errorf("testserver: the server didn't stop in %v: %s", stopTimeout, s.logTail()), s.kill())
	}
}

// Kill crashes the server: its postmaster and every child get SIGKILL. It returns when they are gone. Start brings
// the server back, through crash recovery.
func (s *Server) Kill() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return ErrClosed
	}
	return s.kill()
}

func (s *Server) kill() error {
	if s.run == nil {
		return nil
	}
	// The postmaster is halted first where that is possible, so that it has no child that we don't know of.
	if s.running() {
		if postmaster, err := process.Find(s.run.pid); err == nil {
			_ = signalAll([]process.ID{postmaster.ID}, sigStop)
		}
	}
	members, err := s.members()
	if err := errors.Join(err, signalAll(members, sigKill)); err != nil {
		return err
	}
	<-s.run.exited
	return waitGone(members)
}

// members returns the living processes of the server: the postmaster, its children, and, where that can be seen,
// children that a crashed postmaster left behind.
func (s *Server) members() ([]process.ID, error) {
	var members []process.ID
	if s.running() {
		if postmaster, err := process.Find(s.run.pid); err == nil {
			members = append(members, postmaster.ID)
		}
		children, err := process.Children(s.run.pid)
		if err != nil {
			return nil, fmt.Errorf("testserver: %w", err)
		}
		members = appendNew(members, children)
	}
	orphans, err := process.Under(s.data())
	if err != nil {
		return nil, fmt.Errorf("testserver: %w", err)
	}
	return appendNew(members, orphans), nil
}

func appendNew(ids []process.ID, found []process.Info) []process.ID {
	for _, info := range found {
		if !slices.Contains(ids, info.ID) {
			ids = append(ids, info.ID)
		}
	}
	return ids
}

func (s *Server) signalMembers(sig syscall.Signal) error {
	members, err := s.members()
	if err != nil {
		return err
	}
	return signalAll(members, sig)
}

// waitGone returns when none of the processes is alive.
func waitGone(ids []process.ID) error {
	deadline := time.Now().Add(stopTimeout)
	for _, id := range ids {
		for id.Alive() {
			if time.Now().After(deadline) {
				return fmt.Errorf("testserver: process %d doesn't end", id.PID)
			}
			pause(2 * time.Millisecond)
		}
	}
	return nil
}

// pause is how this package waits between two looks at something that can't notify.
func pause(d time.Duration) {
	timer := time.NewTimer(d)
	<-timer.C
}
