package child

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// deadlines are two timers (timerfd) that this process shares with the supervisor. The supervisor
// sends TERM to the command's tree when the first is reached, and KILL when the second is.
//
// The kernel keeps them, so setting one never blocks, and a supervisor that was stopped finds the
// deadlines that count now, not those of old messages. They follow CLOCK_BOOTTIME, because leases
// expire on the server while this machine is suspended.
type deadlines struct{ term, kill int }

// never is a deadline that is not reached. In 32 bits its seconds must not overflow.
const never = 10 * 365 * 24 * time.Hour

// newDeadlines makes timers that are never reached. The next program inherits them.
func newDeadlines() (deadlines, error) {
	first, err := unix.TimerfdCreate(unix.CLOCK_BOOTTIME, 0)
	if err != nil {
		return deadlines{}, err
	}
	second, err := unix.TimerfdCreate(unix.CLOCK_BOOTTIME, 0)
	if err != nil {
		return deadlines{}, errors.Join(err, unix.Close(first))
	}
	d := deadlines{first, second}
	d.set(time.Time{}, time.Time{})
	return d, nil
}

// set replaces both deadlines, and reports whether the first one had been reached before.
func (d deadlines) set(term, kill time.Time) (reached bool) {
	setTimer(d.kill, kill)
	return setTimer(d.term, term)
}

// setTimer replaces the time of a timer, and reports whether it had been reached before. A zero
// time is never reached. If the kernel refused the new time, the old one would still count.
func setTimer(fd int, at time.Time) (reached bool) {
	left := never
	var now unix.Timespec
	// This clock is read first: a suspension between the two readings makes the timer early, not
	// late.
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &now) // it exists, since the timer does
	if !at.IsZero() {
		left = time.Until(at)
	}
	var old unix.ItimerSpec
	next := unix.ItimerSpec{Value: unix.NsecToTimespec(max(now.Nano()+int64(left), 1))} // 0 stops a timer
	err := unix.TimerfdSettime(fd, unix.TFD_TIMER_ABSTIME, &next, &old)
	return err == nil && old.Value == unix.Timespec{}
}

// termReached reports whether the first deadline has been reached.
func (d deadlines) termReached() bool {
	var now unix.ItimerSpec
	err := unix.TimerfdGettime(d.term, &now)
	return err == nil && now.Value == unix.Timespec{}
}

// waitTimer returns when the timer is reached.
func waitTimer(fd int) {
	for {
		if _, err := unix.Read(fd, make([]byte, 8)); !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

func (d deadlines) closeOnExec() {
	unix.CloseOnExec(d.term)
	unix.CloseOnExec(d.kill)
}

func (d deadlines) close() {
	_ = unix.Close(d.term)
	_ = unix.Close(d.kill)
}

// minBeat is the shortest time between two beats.
const minBeat = 5 * time.Millisecond

// heartbeat moves the deadlines while this process runs, from before the start of the supervisor
// on. When this process is suspended they stay, and the supervisor acts.
type heartbeat struct {
	deadlines
	next func() (term, kill time.Time)

	expired atomic.Bool   // the time of TERM was reached, before a beat replaced it
	halting chan struct{} // closed by halt
	halted  chan struct{} // closed when no beat follows
	halt    func()        // ends the beats; may be called again
}

// newHeartbeat begins to beat. With a nil next the deadlines are never reached.
func newHeartbeat(next func() (term, kill time.Time)) (*heartbeat, error) {
	d, err := newDeadlines()
	if err != nil {
		return nil, err
	}
	h := &heartbeat{deadlines: d, next: next, halting: make(chan struct{}), halted: make(chan struct{})}
	h.halt = sync.OnceFunc(func() {
		close(h.halting)
		<-h.halted
	})
	if next == nil {
		close(h.halted)
		return h, nil
	}
	h.set(next()) // before the supervisor exists
	go h.run()
	return h, nil
}

// run beats after an eighth of the time that is left, and so just before the deadline too, when a
// late renewal may have moved it.
func (h *heartbeat) run() {
	defer close(h.halted)
	for {
		term, kill := h.next()
		switch {
		case h.termReached(): // the deadline for KILL stays
			return
		case h.set(term, kill): // it was reached in this moment
			h.expired.Store(true)
			return
		}
		select { // in any order: one more beat does no harm
		case <-h.halting:
			return
		case <-time.After(max(time.Until(term)/8, minBeat)):
		}
	}
}

// Expired reports whether the time for TERM was reached while the command or one of its descendants
// was left. Then the supervisor has sent TERM, unless it was suspended or killed as well.
func (p *Process) Expired() bool { return p.heartbeat.expired.Load() || p.heartbeat.termReached() }

// terminated keeps the supervisor from sending TERM again. The time for KILL stays.
func (p *Process) terminated() {
	p.heartbeat.halt()
	setTimer(p.heartbeat.term, time.Time{})
}

// end halts the beats and closes the timers.
func (h *heartbeat) end() {
	h.halt()
	h.close()
}
