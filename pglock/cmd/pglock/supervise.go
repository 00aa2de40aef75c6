package main

import (
	"errors"
	"os"
	"time"

	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/cmd/pglock/internal/child"
)

const (
	// lookEvery is how often the command's group is looked at once the command has
	// ended: no event tells when the last of processes has that are not our children.
	lookEvery = 20 * time.Millisecond

	// killPatience is how long a killed process may take to go away.
	killPatience = 5 * time.Second
)

// supervision sees to a command while it runs under a lease.
//
//	running ── ends by itself ───────────────────────────────▶ over
//	   │ └─── ends after a signal that ends ──▶ others of its group have
//	   │                                        the grace to end ──▶ over
//	   └ lease lost ──▶ TERM ── grace over ──▶ KILL ── group gone ──▶ over
type supervision struct {
	console
	lease   *pglock.Lease
	process *child.Process
	signals *signals
	grace   time.Duration

	lost      bool // and the group was asked to end
	killed    bool
	ended     bool // the command; others of its group may run
	asked     bool // to end, by a signal
	abandoned bool // the group took too long

	patience <-chan time.Time // fires when the group has taken long enough
	look     <-chan time.Time // fires while the group is waited for
}

// run returns when the command has ended, and its group if that was asked to.
//
// Several channels may be ready at once, and any order will do. In particular a
// command is never continued under a lease that has ended, since resume asks the
// lease itself.
func (s *supervision) run() {
	lost, ended := s.lease.Done(), s.process.Done()
	for !s.over() {
		select {
		case <-lost:
			lost = nil
			s.terminate()
		case <-ended:
			ended = nil
			s.wait()
		case sig := <-s.signals.c:
			s.pass(sig)
		case sig := <-s.process.Stopped():
			if s.process.Follow(sig) {
				s.resume()
			}
		case <-s.patience:
			s.kill()
		case <-s.look:
		}
	}
	if !s.lost && s.process.GroupAlive() {
		s.note("the command has ended, but processes that it started still run, now without the lock")
	}
}

func (s *supervision) over() bool {
	switch {
	case !s.ended:
		return false
	case !s.lost && !s.asked:
		return true
	}
	return s.abandoned || !s.process.GroupAlive()
}

// terminate asks the group to end, the lease being lost. It may be called again.
func (s *supervision) terminate() {
	if s.lost || s.lease.Err() == nil {
		return
	}
	s.lost = true
	s.say("%s; stopping the command", describe(s.lease.Err()))
	s.check(s.process.Terminate())
	s.patience = time.After(s.grace)
}

// wait has the loop wait for the group, the command having ended.
func (s *supervision) wait() {
	s.ended = true
	s.asked = s.asked || s.process.Signaled()
	s.look = time.Tick(lookEvery)
	if !s.lost {
		s.patience = time.After(s.grace)
	}
}

// kill ends the group if it outlived its grace. Without a loss nobody has the
// right to kill what handles its signals slowly: it is left alone.
func (s *supervision) kill() {
	if !s.lost || s.killed {
		s.abandoned = true
		return
	}
	s.killed = true
	s.say("the command and what it started did not end within %v: killing them", s.grace)
	s.check(s.process.Kill())
	s.patience = time.After(killPatience)
}

// pass hands a signal on to the group.
func (s *supervision) pass(sig os.Signal) {
	switch {
	case continues(sig):
		s.resume()
	case passedOn(sig):
		s.asked = s.asked || ends(sig)
		s.check(s.process.Signal(sig))
	}
}

// resume continues the command after a stop, which may have lasted longer than
// the lease: then the command must end, and is told so before it runs.
func (s *supervision) resume() {
	s.terminate()
	s.check(s.process.Resume())
}

func (s *supervision) check(err error) {
	if err != nil && !errors.Is(err, os.ErrProcessDone) {
		s.say("can't signal the command: %v", err)
	}
}
