package child

import (
	"errors"
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
