// Package display has the rules that the screens of `pglock top` and of package ui share: how long
// they rest between two reads, and which grants are in trouble.
package display

import (
	"maps"
	"time"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/pglock/inspect"
)

const (
	// busyShare is how much longer than a read the rest after it is, so that the server spends 1 %
	// of its time with it at most, however many locks there are.
	busyShare = 100
	// AfterFailure is the rest after a read that failed, however long it took: the screen should
	// show soon that the server answers again.
	AfterFailure = 3 * time.Second
	// jitter is how much the expiry of a grant can seem to move without a renewal, since it is
	// computed from the time of the read and from what remained a bit later.
	jitter = time.Second
)

// Pace decides when a screen reads again. The zero value has seen no read.
type Pace struct {
	last time.Duration // that the last read took which succeeded
}

// Rest returns how long to rest after a read that took some time and failed with err, or succeeded.
// The shorter one of the last two reads that succeeded counts: one that outlasted an outage cost
// the server nothing.
func (p *Pace) Rest(took time.Duration, err error) time.Duration {
	if err != nil {
		return AfterFailure
	}
	usual := took
	if p.last > 0 {
		usual = min(took, p.last)
	}
	p.last = took
	return busyShare * usual
}

// Renewals has the expiry of each grant, and since when a screen has seen it without a change. The
// server does not store the TTL of a grant.
type Renewals map[fencing.Token]renewal

type renewal struct{ expires, since time.Time }

// Overdue returns the grants of locks, read at that time, which have gone without a renewal for
// longer than they will still last, and for how long they have been seen to. Less than half of the
// TTL of each is left.
func (r Renewals) Overdue(at time.Time, locks ...inspect.Lock) map[fencing.Token]time.Duration {
	maps.DeleteFunc(r, func(_ fencing.Token, seen renewal) bool { return seen.expires.Before(at) })
	overdue := map[fencing.Token]time.Duration{}
	for _, l := range locks {
		for _, g := range l.Live() {
			expires := at.Add(g.Remaining)
			seen, known := r[g.Token]
			if !known || expires.Sub(seen.expires).Abs() > jitter {
				seen = renewal{expires, at}
				r[g.Token] = seen
			}
			if unrenewed := at.Sub(seen.since); unrenewed > g.Remaining+jitter {
				overdue[g.Token] = unrenewed
			}
		}
	}
	return overdue
}
