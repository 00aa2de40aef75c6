package leasetable

import (
	"sync"
	"time"
)

// queue lines up the goroutines of this process that wait for the same name. Only the
// first of each line asks the server, so that a thousand waiters cost as many questions
// as one, and they are served in the order in which they came. For all of a line the
// process holds one ticket in the queue on the server.
type queue struct {
	mu    sync.Mutex
	lines map[string]*line    // guarded by mu; none stays that has neither turns nor a row
	alone map[string]struct{} // guarded by mu; names that somebody asks for without a turn
}

// line is what this process knows of the waiting for a name. The queue's mu guards it.
type line struct {
	name  string
	turns []*turn

	ticket int64     // in the queue on the server, if it counts there; otherwise 0
	row    int64     // the ticket in our row of lock_waiters, void or not; 0: no row
	join   *joinCall // that is under way, or nil

	emptySince time.Time // when the last turn left
	contended  time.Time // when others were found to wait, so that nothing is handed over here
}

// turn is a place in a line.
type turn struct {
	*acquisition
	line   *line
	first  chan struct{} // closed when everybody before has left
	nudged chan struct{} // holds one: asking again is worth it
	handed chan answer   // holds one: what came of a grant that is handed over

	// guarded by the queue's mu
	state   turnState
	follows bool // the one before left with the grant
}

// turnState tells whose the request of a turn is at the moment.
type turnState int

const (
	resting   turnState = iota
	asking              // on its way to the server
	reserved            // a release hands the lock over to it
	abandoned           // the turn was left
)

// join takes the last place in the line for a's name.
func (q *queue) join(a *acquisition) *turn {
	t := &turn{acquisition: a, first: make(chan struct{}), nudged: make(chan struct{}, 1), handed: make(chan answer, 1)}
	q.mu.Lock()
	defer q.mu.Unlock()
	ln := q.lines[a.name]
	if ln == nil {
		ln = &line{name: a.name}
		q.lines[a.name] = ln
	}
	t.line = ln
	ln.turns = append(ln.turns, t)
	if len(ln.turns) == 1 {
		close(t.first)
	}
	return t
}

// leave gives the place up, granted or not. The next in line may be the first then. It
// returns the ticket that nobody needs any more, if there is one.
func (q *queue) leave(t *turn, isGranted bool) (ticket int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	ln := t.line
	t.state = abandoned
	for i, other := range ln.turns {
		if other != t {
			continue
		}
		ln.turns = append(ln.turns[:i:i], ln.turns[i+1:]...)
		if i == 0 && len(ln.turns) > 0 {
			ln.turns[0].follows = isGranted
			close(ln.turns[0].first)
		}
		break
	}
	return q.vacate(ln)
}

// vacate sees to a line without turns: it returns its ticket, if it has one that counts.
// The caller holds mu.
func (q *queue) vacate(ln *line) (ticket int64) {
	if len(ln.turns) > 0 || ln.join != nil {
		return 0
	}
	ticket, ln.ticket = ln.ticket, 0
	if ticket != 0 {
		ln.row = 0
	}
	ln.emptySince = time.Now()
	if ln.row == 0 {
		delete(q.lines, ln.name)
	}
	return ticket
}

// ask takes the turn's request to the server, unless it is reserved, or what came of that
// is there: a grant has one owner.
func (q *queue) ask(t *turn) (ticket int64, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if t.state != resting || len(t.handed) > 0 {
		return 0, false
	}
	t.state = asking
	return t.line.ticket, true
}

// asked says what came of it: whether the ticket is used up, or void.
func (q *queue) asked(t *turn, ticket int64, isVoid bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	t.state = resting
	if isVoid && t.line.ticket == ticket {
		t.line.ticket = 0
	}
}

// reserve returns the first in line for name, for the lock to be handed over to it. It
// asks no more until handOver or giveUp is called. nil: there is none, or it is asking, or
// others wait too.
func (q *queue) reserve(name string) *turn {
	q.mu.Lock()
	defer q.mu.Unlock()
	ln := q.lines[name]
	if ln == nil || len(ln.turns) == 0 || time.Since(ln.contended) < time.Second {
		return nil
	}
	t := ln.turns[0]
	if t.state != resting || len(t.handed) > 0 {
		return nil
	}
	t.state = reserved
	return t
}

// handOver gives a reserved turn what came of it. It returns false if the turn was left.
func (q *queue) handOver(t *turn, a answer) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if t.state == abandoned {
		return false
	}
	t.state = resting
	t.handed <- a
	return true
}

// giveUp ends the reservation: others wait, or there is nothing to hand over.
func (q *queue) giveUp(t *turn) {
	q.mu.Lock()
	defer q.mu.Unlock()
	t.line.contended = time.Now()
	if t.state == reserved {
		t.state = resting
	}
}

// nudge has the first in line for name ask at once. It returns false if nobody is in line.
func (q *queue) nudge(name string) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.nudgeLine(q.lines[name])
}

func (q *queue) nudgeLine(ln *line) bool {
	if ln == nil || len(ln.turns) == 0 {
		return false
	}
	select {
	case ln.turns[0].nudged <- struct{}{}:
	default: // told already
	}
	return true
}

// nudgeAll has the first of every line ask.
func (q *queue) nudgeAll() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, ln := range q.lines {
		q.nudgeLine(ln)
	}
}

// beginAlone reports whether nobody waits for name, here or, as far as is known, elsewhere,
// and nobody here asks for it at the moment. Then endAlone must follow: until then others
// line up.
func (q *queue) beginAlone(name string) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if _, asked := q.alone[name]; asked || q.lines[name] != nil {
		return false
	}
	q.alone[name] = struct{}{}
	return true
}

func (q *queue) endAlone(name string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.alone, name)
}
