package child

import (
	"sync"
	"sync/atomic"
	"time"
)

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
