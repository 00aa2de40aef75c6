package waitlist

import (
	"container/list"
	"slices"
	"time"

	"github.com/pglock/pglock-go/internal/timing"
	"github.com/pglock/pglock-go/leasetable"
)

// Entry is the position of one waiting call in a local queue.
type Entry struct {
	// The entry's caller receives from these channels, and the Queues send or close under their mu.
	Head   chan struct{} // closed when the entry becomes the head
	Woken  chan struct{} // buffer of one: another attempt is worthwhile
	Handed chan *Answer  // buffer of one: the result of a hand-off, by pointer, since there are many entries
	Outage chan error    // buffer of one: the server did not answer for timing.OutagePatience

	// immutable after Push, AfterGrant when Head is closed
	Before     int  // entries before this one at first
	AfterGrant bool // the entry before this one left with the grant: a hand-off is likely
	list       *Queues
	queue      *queue
	elem       *list.Element // in queue.entries
	began      time.Time     // the call

	// guarded by the Queues' mu
	request *leasetable.Request // replaced, never changed
	state   state
}

// state is the state of an entry, as the package comment defines it.
type state int

const (
	waiting state = iota
	attempting
	reserved
	delivered
	left
)

// Request returns the request of the entry's call, which must not be changed.
func (e *Entry) Request() *leasetable.Request {
	e.list.mu.Lock()
	defer e.list.mu.Unlock()
	return e.request
}

// IsHead reports whether the entry is or was the head.
func (e *Entry) IsHead() bool {
	select {
	case <-e.Head:
		return true
	default:
		return false
	}
}

// Leave removes the entry, granted or not, and the next one may become the head. If the last entry
// leaves, a ticket that is not needed any more is deleted in the background. gone is closed after
// that, or nil if nothing is left on the server. The caller is inside a counted call, and
// afterwards receives what is in Handed.
func (e *Entry) Leave(granted bool) (gone <-chan struct{}) {
	l, q := e.list, e.queue
	l.mu.Lock()
	e.state = left
	wasHead := q.head() == e
	q.entries.Remove(e.elem)
	if next := q.head(); wasHead && next != nil {
		next.AfterGrant = granted
		close(next.Head)
	}
	unneeded := l.dropIfEmpty(q)
	if unneeded != nil || q.entries.Len() == 0 && q.join != nil {
		gone = l.beginRemovals(q.keys)
		if q.join != nil {
			q.join.removals++ // ended in runJoin, which knows the ticket
		}
	}
	l.mu.Unlock()
	if unneeded != nil {
		l.deleteTicket(unneeded, q.keys, 1)
	}
	return gone
}

// Row returns the row of the entry's queue, whose ticket is for its head.
func (e *Entry) Row() Row {
	e.list.mu.Lock()
	defer e.list.mu.Unlock()
	return e.queue.row
}

// BeginAttempt reserves the entry's request for an attempt with the ticket, which is
// leasetable.NoTicket if there is none, or the entry is not the head. Because a grant has one
// owner, it returns false while a hand-off uses the request, or before the caller has received its
// result. If it returns true, EndAttempt must follow.
func (e *Entry) BeginAttempt() (ticket int64, ok bool) {
	e.list.mu.Lock()
	defer e.list.mu.Unlock()
	if e.state != waiting {
		return leasetable.NoTicket, false
	}
	e.state = attempting
	if e.queue.head() != e {
		return leasetable.NoTicket, true
	}
	return e.queue.row.Ticket(), true
}

// EndAttempt ends an attempt with that ticket. answered reports that the server answered, and
// usedUp that the ticket was used or is invalid. id is the ID of the caller's next request.
func (e *Entry) EndAttempt(id string, ticket int64, answered, usedUp bool) {
	e.list.mu.Lock()
	defer e.list.mu.Unlock()
	e.state = waiting
	if e.request.ID != id {
		r := *e.request
		r.ID = id
		e.request = &r
	}
	if answered {
		e.queue.failingSince = time.Time{}
	}
	if usedUp && e.queue.row == (Row{rowQueued, ticket}) {
		e.queue.row.state = rowStale
	}
}

// NoteBusy records the answer that the lock is busy, for the entries behind this one.
func (e *Entry) NoteBusy(g leasetable.Grant) {
	e.list.mu.Lock()
	defer e.list.mu.Unlock()
	q := e.queue
	q.busy, q.busyAt = g, time.Now()
	q.heldUntil = q.busyAt.Add(g.Remaining)
}

// Held returns how long the blocking grant lasts unless renewed, by the last answer or look.
func (e *Entry) Held() time.Duration {
	e.list.mu.Lock()
	defer e.list.mu.Unlock()
	return time.Until(e.queue.heldUntil)
}

// LastBusy returns the last answer that the lock is busy, with the time that its grant has left. It
// reports false if there was none, or the grant has expired unless renewed.
func (e *Entry) LastBusy() (g leasetable.Grant, ok bool) {
	e.list.mu.Lock()
	defer e.list.mu.Unlock()
	g = e.queue.busy
	g.Remaining -= time.Since(e.queue.busyAt)
	return g, g.Remaining > 0
}

// Fail records that the server did not answer the head, and returns since when it is unavailable
// for this call. Entries behind the head don't contact the server, so those that have waited for
// timing.OutagePatience receive err in Outage.
func (e *Entry) Fail(err error) (since time.Time) {
	e.list.mu.Lock()
	defer e.list.mu.Unlock()
	q := e.queue
	if q.failingSince.IsZero() {
		q.failingSince = time.Now()
	}
	for elem := q.entries.Front(); elem != nil; elem = elem.Next() {
		other := elem.Value.(*Entry)
		if other != e && time.Since(later(q.failingSince, other.began)) > timing.OutagePatience {
			offer(other.Outage, err)
		}
	}
	return later(q.failingSince, e.began)
}

func later(a, b time.Time) time.Time { return slices.MaxFunc([]time.Time{a, b}, time.Time.Compare) }

// Reserve reserves the head for a hand-off of the lock name. The head makes no attempt until
// Deliver or CancelHandoff. Reserve returns nil if there is no head, if its attempt is in progress,
// if it wants the name as another kind of lock, or if other processes wait too.
func (l *Queues) Reserve(name string) *Entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.queues[name]
	if q == nil || q.entries.Len() == 0 || time.Since(q.contended) < timing.HandoffPause {
		return nil
	}
	e := q.head()
	if e.state != waiting || e.request.Permits.Any() {
		return nil
	}
	e.state = reserved
	return e
}

// Deliver sends a reserved entry the result of its hand-off. It returns false if the entry has
// left, in which case the caller must revoke the grant.
func (e *Entry) Deliver(a Answer) bool {
	e.list.mu.Lock()
	defer e.list.mu.Unlock()
	if e.state == left {
		return false
	}
	e.state = delivered
	e.Handed <- &a
	return true
}

// EndHandoff ends a hand-off whose result the caller has checked. id is that of its next request.
func (e *Entry) EndHandoff(id string) { e.EndAttempt(id, leasetable.NoTicket, false, false) }

// CancelHandoff ends the reservation: other processes wait, or there is nothing to hand off.
func (e *Entry) CancelHandoff() {
	e.list.mu.Lock()
	defer e.list.mu.Unlock()
	e.queue.contended = time.Now()
	e.state = waiting // also of one that has left, whose state nothing reads any more
}
