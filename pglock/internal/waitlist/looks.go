package waitlist

import (
	"slices"
	"strings"
	"time"

	"github.com/pglock/pglock-go/internal/backoff"
	"github.com/pglock/pglock-go/internal/random"
	"github.com/pglock/pglock-go/internal/timing"
	"github.com/pglock/pglock-go/leasetable"
)

// looks are the times at which a queue needs the refresher, which the Queues' mu guards. A look
// refreshes the row on the server, so that it stays valid, and reports its position and the lock.
//
//	row                     the next look is the earliest of these times        the head until then
//	none, unknown, stale    never; an idle row is deleted after IdleRowTTL      attempts, or draws a ticket
//	overflow, just drawn    FirstLook, patience                                 sleeps
//	overflow, seen          patience after the look                             sleeps
//	queued, just drawn      FirstLook                                           makes attempts
//	queued, seen            RefreshEvery, or RefreshEvery/4 sooner with others  makes attempts
//	queued, released ahead  HeadGrace + ExpirySpread after the last release     makes attempts
//	silent: no answer yet   about SweepEvery after the look began               as before
//	several names, heavy    each round, because KeepTicket is short             makes attempts
//
//	a look finds            next state        the head
//	no such ticket          stale             is woken, and draws another one
//	a ticket                queued, seen      is woken, because a release may have missed it
//	a free lock, overdue    unchanged         is woken, and all others: a notification was lost
//	a free lock             unchanged         is woken
//	an earlier expiry       unchanged         is woken, because it would sleep too long
//	an error                silent            is woken in the overflow list, to notice an outage
type looks struct {
	at       time.Time // of the next look
	headAt   time.Time // of a look for a dead head; zero: none
	listenAt time.Time // when the waiters need the listener; zero: they have had no ticket
	seenAt   time.Time // of the newest answer
	ahead    int       // waiters before the row, by that answer
}

// drawn records the answer to a Join. A queue that draws one ticket after the other needs the
// listener as soon as one that waits with a single ticket.
func (k *looks) drawn(r Row, ahead int, now time.Time) {
	k.ahead = ahead // an older number does not show how fast the queue moves
	k.seen(r, ahead, now)
	k.at = now.Add(min(k.at.Sub(now), timing.FirstLook))
	if r.InOverflow() {
		k.listenAt = time.Time{}
	} else if k.listenAt.IsZero() {
		k.listenAt = now.Add(timing.ListenAfter)
	}
}

// begun records that a look is in progress, which is repeated unless it succeeds.
func (k *looks) begun(now time.Time) {
	k.at = now.Add(backoff.Jitter(timing.SweepEvery))
	if !now.Before(k.headAt) {
		k.headAt = time.Time{}
	}
}

// seen records the position that a look has returned.
func (k *looks) seen(r Row, ahead int, now time.Time) {
	k.at = now.Add(k.patience(r, ahead, now))
	k.ahead, k.seenAt = ahead, now
}

// patience returns how long after a look the next one is due, with so many waiters before the row.
//
// In the overflow list, the first ones look more often than those behind them, so that one of them
// joins the queue soon after it is empty. If the queue moves, they look again after half of the
// time that it needs to reach them.
func (k *looks) patience(r Row, ahead int, now time.Time) time.Duration {
	if r.state == rowQueued {
		return timing.RefreshEvery
	}
	d := min(timing.RefreshEvery, time.Duration(ahead)*timing.LookStep)
	if moved := k.ahead - ahead; moved > 0 {
		d = min(d, now.Sub(k.seenAt)*time.Duration(ahead)/time.Duration(2*moved))
	}
	return max(d/2+random.N(d/2+1), timing.LeastLook) // at random, as a fleet often begins together
}

// due returns when the next look is due.
func (k *looks) due() time.Time {
	if !k.headAt.IsZero() && k.headAt.Before(k.at) {
		return k.headAt
	}
	return k.at
}

// next returns, under mu, when the queue needs the refresher, or limit if that is sooner.
func (q *queue) next(now, limit time.Time) time.Time {
	if due := q.looks.due(); q.row.Joined() && due.Before(limit) {
		limit = due
	}
	if listen := q.looks.listenAt; listen.After(now) && listen.Before(limit) {
		limit = listen
	}
	return limit
}

// untilNext returns the time until a look is due, or waiters need the listener, but at most
// timing.SweepEvery.
func (l *Queues) untilNext() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	l.looksAt = now.Add(timing.SweepEvery)
	for _, q := range l.queues {
		l.looksAt = q.next(now, l.looksAt)
	}
	return max(l.looksAt.Sub(now), 0)
}

// collect returns the tickets that are due for a look, and the idle rows, which it forgets. If any
// ticket is due, so are those that would be soon, so that a client refreshes its tickets together.
// If no queue is left, the refresher sleeps until the next ticket wakes it.
func (l *Queues) collect(now time.Time) (due, idle []leasetable.Ticket, rows bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	soon := now
	for _, q := range l.queues {
		if q.row.Joined() && !now.Before(q.looks.due()) {
			soon = now.Add(timing.RefreshEvery / 4)
		}
	}
	for _, q := range l.queues {
		switch {
		case q.row.Joined():
			always := q.number != "" || q.heavy()
			if always || !now.Before(q.looks.due()) || q.row.state == rowQueued && q.looks.at.Before(soon) {
				due = append(due, q.ticket())
				q.looks.begun(now)
			}
		case q.entries.Len() == 0 && q.join == nil && now.Sub(q.emptySince) > timing.IdleRowTTL:
			idle = append(idle, q.ticket())
			l.drop(q)
		}
	}
	if len(l.queues) == 0 {
		l.looksAt = time.Time{}
	}
	// Clients that lock several rows of the queue lock them in one order.
	slices.SortFunc(due, func(a, b leasetable.Ticket) int { return slices.Compare(a.Names, b.Names) })
	return due, idle, len(l.queues) > 0
}

// looked records the answer to a look, or its failure, as the table of looks defines it, and
// reports whether a notification was lost. A ticket has disappeared if the server crashed, if this
// process paused for too long, or if the queue has skipped it.
func (l *Queues) looked(t leasetable.Ticket, p leasetable.Position, err error) (lost bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.queues[t.Names[0]]
	if _, number, several := strings.Cut(t.Client, "/"); several {
		q = l.numbers[number]
	}
	if q == nil || !q.row.Joined() || q.row.ticket != t.Number {
		return false
	}
	if err != nil {
		if q.row.InOverflow() { // otherwise the head makes attempts
			q.wake()
		}
		return false
	}
	was, now := q.row, time.Now()
	q.row = was.at(p)
	q.looks.seen(q.row, p.Ahead, now)
	earlier := now.Add(p.Remaining).Before(q.heldUntil.Add(-timing.SweepEvery))
	q.heldUntil = now.Add(p.Remaining)
	if q.row.InOverflow() {
		return false
	}
	changed := q.row != was
	if changed && q.row.Joined() {
		q.looks.listenAt = now.Add(timing.ListenAfter)
	}
	if changed || p.Free || earlier {
		q.wake()
	}
	return !changed && p.Free && p.Ahead == 0 && p.Overdue
}

// ReleasedAhead records that a release has notified waiters ahead for name, which may be dead.
func (l *Queues) ReleasedAhead(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if q := l.queues[name]; q != nil && q.row.state == rowQueued {
		q.looks.headAt = time.Now().Add(timing.HeadGrace + timing.ExpirySpread)
	}
}
