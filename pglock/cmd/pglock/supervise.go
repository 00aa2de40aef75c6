package main

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/cmd/pglock/internal/child"
)

const (
	// pollInterval is the time between checks for processes that must end, after the command has
	// ended. There is no event for the end of the last member of a process group.
	pollInterval = 20 * time.Millisecond

	// killTimeout is how long a killed process may take to end.
	killTimeout = 5 * time.Second
)

// supervision supervises a command that runs under a lease. A request to release the lock counts as a
// termination signal if the command obeys.
//
//	running ── ends without a signal ──────────────────────────▶ done
//	   │ └──── ends after a termination signal ──▶ the rest of its group
//	   │                                           has the grace to end ──▶ done
//	   └ lease lost ──▶ TERM ── grace over ──▶ KILL ── all ended ──▶ done
//
// After a loss, the group and, on Linux, all other descendants of the command must end. On Linux
// the supervisor (see package child) sends the same signals if this process is suspended. A lease
// whose command the supervisor had to end counts as lost.
type supervision struct {
	console
	lease   *pglock.Lease
	process *child.Process
	signals *signals
	grace   time.Duration
	spare   time.Duration // from the end of the grace to the expiry of the lease
	obeys   bool          // a request to release the lock ends the command as a signal does

	lost        bool // the lease; the command and its descendants got TERM
	killed      bool // the command and its descendants got KILL
	ended       bool // the command; others of its group may run
	interrupted bool // a termination signal was forwarded to the group
	abandoned   bool // the processes that must end took too long

	timeout <-chan time.Time // fires when the processes that must end have taken too long
	poll    <-chan time.Time // fires while run waits for them
}

// run returns when the command has ended. After a termination signal it waits for the group too.
func (s *supervision) run() {
	lost, ended, asked := s.lease.Done(), s.process.Done, asks(s.lease, s.obeys)
	for !s.done() {
		// Several channels may be ready, and any order is right. In particular, a command is never
		// continued under a lost lease, because resume checks the lease itself.
		select {
		case <-lost:
			lost = nil
			s.terminate()
		case <-ended:
			ended = nil
			s.commandEnded()
		case <-asked:
			asked = nil
			s.obey()
		case sig := <-s.signals.c:
			s.forward(sig)
		case sig := <-s.process.Stopped:
			if s.process.Follow(sig) {
				s.resume()
			}
		case <-s.timeout:
			s.kill()
		case <-s.poll:
			if s.killed {
				_ = s.process.Kill() // processes that were being started at the first Kill; errors were printed then
			}
		}
	}
	s.reportRemaining()
}

// reportRemaining prints which processes are left. Their names are known on Linux only.
func (s *supervision) reportRemaining() {
	names, left := s.process.Remaining()
	if s.lost && s.process.Alive() {
		left = true // /proc may hide processes of other users
	}
	if !left {
		return
	}
	const most = 5
	if more := len(names) - most; more > 0 {
		names = append(names[:most], fmt.Sprintf("and %d more", more))
	}
	text := strings.TrimSuffix("still run, now without the lock: "+strings.Join(names, ", "), ": ")
	if s.lost {
		s.errorf("some processes can't be killed: they %s", text)
		return
	}
	s.infof("the command has ended: processes that it started %s", text)
}

func (s *supervision) done() bool {
	switch {
	case !s.ended:
		return false
	case s.abandoned:
		return true
	case s.lost:
		return !s.process.Alive()
	}
	return !s.interrupted && !s.process.Signaled || !s.process.GroupAlive()
}

// deadlines returns when the supervisor must send TERM and KILL. A running pglock sends TERM itself
// at the deadline of the lease, and a quarter of the spare time is left for that, because some
// commands take a second TERM for impatience. The KILL has all of the spare time until the lease
// expires.
func (s *supervision) deadlines() (term, kill time.Time) {
	deadline := s.lease.Deadline()
	return deadline.Add(s.spare / 4), deadline.Add(s.grace)
}

// terminate sends TERM to the command and its descendants if the lease is lost, unless the
// supervisor has done so, and may be called again.
func (s *supervision) terminate() {
	expired, lost := s.process.Expired(), s.lease.Err()
	switch {
	case s.lost || lost == nil && !expired:
		return
	case lost == nil: // the last renewal did not reach the supervisor
		lost = &pglock.LostError{Name: s.lease.Name(), Token: s.lease.Token(), Reason: "pglock was suspended until its deadline"}
	}
	s.lost = true
	s.timeout = time.After(s.grace)
	var err error
	if !expired { // before any message: stderr may be a pipe without a reader
		err = s.process.Terminate()
	}
	s.errorf("%s: stopping the command", describe(lost))
	s.check(err)
}

// obey says that the holder is asked to release the lock, and ends the command if it obeys.
func (s *supervision) obey() {
	s.errorf("%s", request(s.lease))
	if s.obeys && !s.lost {
		s.forward(syscall.SIGTERM)
	}
}

// commandEnded begins the wait for the other processes that must end.
func (s *supervision) commandEnded() {
	s.terminate() // the supervisor may have ended the command
	s.ended = true
	s.poll = time.Tick(pollInterval)
	if !s.lost {
		s.timeout = time.After(s.grace)
	}
}

// kill sends KILL to processes that have not ended within the grace. Without a loss it leaves them
// running: pglock has no reason to kill them.
func (s *supervision) kill() {
	if !s.lost || s.killed {
		s.abandoned = true
		return
	}
	s.killed = true
	s.timeout = time.After(killTimeout)
	err := s.process.Kill()
	s.errorf("the command and its processes did not end within %v: killing them", s.grace)
	s.check(err)
}

func (s *supervision) forward(sig os.Signal) {
	switch {
	case isContinue(sig):
		s.resume()
	case isForwarded(sig):
		s.interrupted = s.interrupted || isTermination(sig)
		s.check(s.process.Signal(sig))
	}
}

// resume continues a stopped command, which gets TERM first if the lease was lost meanwhile.
func (s *supervision) resume() {
	s.terminate()
	s.check(s.process.Resume())
}

func (s *supervision) check(err error) {
	if err != nil && !errors.Is(err, os.ErrProcessDone) {
		s.errorf("can't signal the command: %v", err)
	}
}
