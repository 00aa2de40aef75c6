package child

import (
	"context"
	"errors"
	"sync"
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

// never is a deadline that is not reached, but whose seconds still fit into 32 bits.
const never = 10 * 365 * 24 * time.Hour

// newDeadlines makes timers that are never reached, and that the next program to start inherits.
func newDeadlines() (deadlines, error) {
	term, err := unix.TimerfdCreate(unix.CLOCK_BOOTTIME, 0)
	if err != nil {
		return deadlines{}, err
	}
	kill, err := unix.TimerfdCreate(unix.CLOCK_BOOTTIME, 0)
	if err != nil {
		return deadlines{}, errors.Join(err, unix.Close(term))
	}
	d := deadlines{term, kill}
	d.clear()
	return d, nil
}

// clear makes sure that neither deadline is reached.
func (d deadlines) clear() {
	setTimer(d.kill, time.Time{})
	setTimer(d.term, time.Time{})
}

// move replaces both deadlines, unless the first has been reached: then it reports that, and TERM
// is due. A supervisor that has not read a reached timer yet would not see it any more once it was
// replaced, and only KILL would follow, so the timer is made to be reached again. KILL moves first:
// if this process is suspended in between, TERM still comes before KILL.
func (d deadlines) move(term, kill time.Time) (reached bool) {
	setTimer(d.kill, kill)
	if reached = setTimer(d.term, term); reached {
		setTimer(d.term, time.Now())
	}
	return reached
}

// setTimer replaces the time of a timer, and reports whether it had been reached before. A zero
// time is never reached. If the kernel refused the new time, the old one would still count.
func setTimer(fd int, at time.Time) (reached bool) {
	left := never
	var now unix.Timespec
	// This clock is read first, so that a suspension between the two readings makes the timer early
	// and not late.
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &now) // it exists, since the timer does
	if !at.IsZero() {
		left = time.Until(at)
	}
	var old unix.ItimerSpec
	next := unix.ItimerSpec{Value: unix.NsecToTimespec(max(now.Nano()+int64(left), 1))} // 0 stops a timer
	err := unix.TimerfdSettime(fd, unix.TFD_TIMER_ABSTIME, &next, &old)
	return err == nil && old.Value == unix.Timespec{}
}

func (d deadlines) termReached() bool {
	var now unix.ItimerSpec
	err := unix.TimerfdGettime(d.term, &now)
	return err == nil && now.Value == unix.Timespec{}
}

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

const minBeat = 5 * time.Millisecond

// heartbeat moves the deadlines while this process runs, beginning before the start of the
// supervisor. When this process is suspended they stay where they are, and the supervisor acts.
type heartbeat struct {
	deadlines
	stop  context.CancelFunc
	beats sync.WaitGroup
}

// newHeartbeat starts a heartbeat, whose deadlines are never reached if next is nil.
func newHeartbeat(next func() (term, kill time.Time)) (*heartbeat, error) {
	d, err := newDeadlines()
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	h := &heartbeat{deadlines: d, stop: stop}
	if next != nil {
		h.move(next()) // before the supervisor exists
		h.beats.Go(func() { h.run(ctx, next) })
	}
	return h, nil
}

// run beats after an eighth of the time that is left, and so just before the deadline too, when a
// late renewal may have moved it. A deadline that was reached stays, because TERM is due.
func (h *heartbeat) run(ctx context.Context, next func() (term, kill time.Time)) {
	for {
		term, kill := next()
		if h.move(term, kill) {
			return
		}
		select { // in any order: one more beat does no harm
		case <-ctx.Done():
			return
		case <-time.After(max(time.Until(term)/8, minBeat)):
		}
	}
}

// halt ends the beats, and may be called more than once.
func (h *heartbeat) halt() {
	h.stop()
	h.beats.Wait()
}

func (h *heartbeat) end() {
	h.halt()
	_ = unix.Close(h.term)
	_ = unix.Close(h.kill)
}
