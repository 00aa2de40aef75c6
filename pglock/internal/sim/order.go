package sim

import (
	"strings"
	"time"

	"github.com/pglock/pglock-go/internal/timing"
	"github.com/pglock/pglock-go/leasetable"
	"github.com/pglock/pglock-go/pglock/internal/memory"
)

// order is what the judge knows of the queues.
type order struct {
	asking  map[string]asked // the last attempts, by request
	clients map[string]*Node // that have joined a queue, by their names there
	drawn   map[int64]time.Time
	lines   map[string]*line // by name
}

// asked is an attempt.
type asked struct {
	ticket int64
	client string // of a hand-off, which is behind the others only
}

// line is the queue of a name, as the last look has seen it.
type line struct {
	queue   []memory.Ticket
	grants  []memory.Grant
	size    int
	full    time.Time // the last look at which no permit was free: since then others may skip the head
	blocked time.Time // the last look at which the lock was not free for the head
	head    int64
	since   time.Time // when head became the head
}

func newOrder() order {
	return order{map[string]asked{}, map[string]*Node{}, map[int64]time.Time{}, map[string]*line{}}
}

// asks notes an attempt.
func (j *judge) asks(r *leasetable.Request, handoff string) {
	if a := (asked{r.Ticket, handoff}); handoff == "" {
		j.asking[r.ID] = a
	} else {
		a.ticket = leasetable.NoTicket
		j.asking[r.ID] = a
	}
}

// joins notes a ticket.
func (j *judge) joins(n *Node, client string, p leasetable.Position) {
	j.clients[client] = n
	j.drawn[p.Ticket] = time.Now()
}

// leaves judges the deletion of a ticket, which must not be of one that was drawn after it was sent.
func (j *judge) leaves(n *Node, t leasetable.Ticket, sent time.Time) {
	for _, name := range t.Names {
		for _, w := range j.world.server.Tickets(name) {
			gone := w.Client == t.Client && (t.Number == leasetable.AnyTicket || t.Number == w.Number)
			if drawn, ok := j.drawn[w.Number]; gone && ok && drawn.After(sent) && j.healthy(n) {
				j.world.failf("order: %s deletes the ticket %d for %q, which it has drawn since the deletion began", n.name, w.Number, name)
			}
		}
	}
}

// lookAtQueues notes the queues and grants.
func (j *judge) lookAtQueues() {
	now := time.Now()
	for _, l := range j.lines {
		l.grants = l.grants[:0]
	}
	j.world.server.Grants(func(g memory.Grant) {
		l := j.lines[g.Name]
		if l == nil {
			l = &line{}
			j.lines[g.Name] = l
		}
		l.grants, l.size = append(l.grants, g), g.Size
	})
	for name, l := range j.lines {
		if l.queue = j.world.server.Tickets(name); len(l.queue) > 0 && l.head != l.queue[0].Number {
			l.head, l.since = l.queue[0].Number, now
		}
		room := l.room(now)
		switch {
		case room < 1:
			l.full = now
		case j.rewound: // by the server's clock it may have been free for long
			l.full = time.Time{}
		}
		if room < l.wanted() {
			l.blocked = now
		}
	}
}

// wanted is how many permits the head wants.
func (l *line) wanted() int {
	if len(l.queue) > 0 {
		return l.queue[0].Weight
	}
	return 1
}

// room returns how many permits were free, if the time was now.
func (l *line) room(now time.Time) int {
	room := l.size
	for _, g := range l.grants {
		if g.Expires.After(now) {
			room -= g.Weight
		}
	}
	return room
}

// inOrder judges a new grant: it leaves enough for those that wait before it, unless the head could
// have been granted the lock for long enough.
func (j *judge) inOrder(g memory.Grant, what event) {
	l, now := j.lines[g.Name], time.Now()
	a, asked := j.asking[g.Request]
	if l == nil || !asked || a.ticket == leasetable.BargeTicket {
		return
	}
	wanted, before := g.Weight, 0
	var head memory.Ticket
	for _, w := range l.queue {
		if w.Number < a.ticket && w.Expires.After(now) && w.Client != a.client {
			if before++; before == 1 {
				head = w
			}
			wanted += w.Weight
		}
	}
	if before == 0 || l.room(now) >= wanted {
		return
	}
	if now.Sub(l.full) < timing.HeadGrace {
		j.world.failf("order: %q is granted to %s, token %d, before %d others, the first of which has the ticket %d (%v)", g.Name, g.Holder, g.Token, before, head.Number, what)
	} else if n := j.clients[head.Client]; n != nil && j.healthy(n) && now.Sub(l.since) > timing.HeadGrace && j.quiet() {
		j.world.failf("order: %q is granted to %s, token %d, and the head of the queue, %s with the ticket %d, is skipped without a reason (%v)", g.Name, g.Holder, g.Token, n.name, head.Number, what)
	}
}

// idle judges the time for which a lock is free and its queue has a head that could be granted it.
func (j *judge) idle() {
	now := time.Now()
	for name, l := range j.lines {
		// A ticket for several names may wait for another one.
		if len(l.queue) == 0 || l.room(now) < l.wanted() || strings.Contains(l.queue[0].Client, "/") {
			continue
		}
		free := l.since
		if l.blocked.After(free) {
			free = l.blocked
		}
		bound := Lagging
		if j.quiet() {
			bound = Prompt
		}
		if n := j.clients[l.queue[0].Client]; n != nil && j.healthy(n) && now.Sub(free) > bound {
			j.world.failf("I6: %q is free for %v, and the head of its queue, %s, is not granted it", name, now.Sub(free), n.name)
			l.since = now
		}
	}
}

// healthy reports whether a process lives, and no fault has delayed it lately.
func (j *judge) healthy(n *Node) bool {
	return !n.dead && !n.leaving && time.Since(n.struck) > Disturbed && time.Since(n.restUntil) > Disturbed && time.Since(j.world.busyUntil) > Disturbed
}

// quiet reports whether notifications arrive.
func (j *judge) quiet() bool {
	return j.world.plan.deaf == 0 || j.world.Now() > Faulty+Lagging
}
