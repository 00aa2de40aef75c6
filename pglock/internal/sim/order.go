package sim

import (
	"slices"
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
	strays  map[int64]bool        // tickets of statements that arrived late
	barges  map[waiting]time.Time // the last attempts beside the queue for several permits
	lines   map[string]*line      // by name
	all     []*line               // the same, in the order in which they were seen

	deleting map[[2]string]int // deletions of any ticket of a client for a name
	strict   bool              // a client with few locks: what it does next is known
}

// asked is an attempt.
type asked struct {
	ticket int64
	client string // of a hand-off, which is behind the others only
}

// line is the queue of a name, as the last look has seen it.
type line struct {
	name    string
	queue   []memory.Ticket
	grants  []*grantSeen
	size    int
	full    time.Time // the last look at which no permit was free: since then others may skip the head
	blocked time.Time // the last look at which the lock was not free for the head
	head    int64
	since   time.Time // when head became the head
	redrawn time.Time // when the head's client drew another ticket
}

func newOrder() order {
	return order{map[string]asked{}, map[string]*Node{}, map[int64]time.Time{}, map[int64]bool{}, map[waiting]time.Time{}, map[string]*line{}, nil, map[[2]string]int{}, false}
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
func (j *judge) joins(n *Node, client string, names []string, p leasetable.Position) {
	j.clients[client] = n
	for _, name := range names {
		if l := j.lines[name]; l != nil && len(l.queue) > 0 && l.queue[0].Client == client && l.queue[0].Number != p.Ticket {
			l.redrawn = time.Now()
		}
	}
	if j.drawn[p.Ticket].IsZero() && j.late {
		j.strays[p.Ticket] = true
	}
	j.drawn[p.Ticket] = time.Now()
}

// owner returns the process that has a ticket, or nil if nobody may know of it.
func (j *judge) owner(t memory.Ticket) *Node {
	if j.strays[t.Number] {
		return nil
	}
	return j.clients[t.Client]
}

// sends notes that a process sends a statement.
func (j *judge) sends(t *trip) {
	j.world.mu.Lock()
	defer j.world.mu.Unlock()
	n := t.node
	n.flying++
	j.deletes(t, 1)
	switch a := t.message.About.(type) {
	case []*leasetable.Request:
		for _, r := range a {
			n.attempted[r.Name] = time.Now()
		}
	case *leasetable.Request:
		for _, name := range a.Names() {
			if t.message.Op == "join" && j.deleting[[2]string{t.message.Client, name}] > 0 {
				j.world.failf("order: %s draws a ticket for %q while it deletes any of them", n.name, name)
			}
		}
	}
}

// hears judges what follows an answer. A client takes no time: a call that has drawn a ticket makes an
// attempt, because the holder may have released the lock without seeing the ticket, and so does a call
// whose own process has released a lock that no process waits for.
func (j *judge) hears(t *trip, answer any, err error) {
	j.world.mu.Lock()
	defer j.world.mu.Unlock()
	t.node.flying--
	j.deletes(t, -1)
	if p, joined := answer.(leasetable.Position); joined && err == nil && p.Ahead <= 1 && t.message.About.(*leasetable.Request).All == nil {
		// After a grant of its own, the next call waits for a hand-off.
		if last := j.grants[t.about][j.newest[t.about]]; last == nil || last.Holder != t.node.name {
			j.looksAgain(t.node, t.about, "has drawn a ticket for")
		}
	} else if t.alone && err == nil {
		j.looksAgain(t.node, t.about, "has released")
	}
}

// deletes counts the statements that may delete any ticket of a client for a name.
func (j *judge) deletes(t *trip, n int) {
	if a, leaves := t.message.About.(leasetable.Ticket); leaves && a.Number == leasetable.AnyTicket {
		for _, name := range a.Names {
			j.deleting[[2]string{a.Client, name}] += n
		}
	}
}

// looksAgain judges that a process makes an attempt now, if a call of it waits.
func (j *judge) looksAgain(n *Node, name, after string) {
	const soon = 20 * time.Millisecond
	if !j.strict || n.flying > 0 { // perhaps by an attempt
		return
	}
	began := time.Now()
	time.AfterFunc(soon, func() {
		j.world.mu.Lock()
		defer j.world.mu.Unlock()
		waits := slices.ContainsFunc(j.waits[waiting{n, name}], func(at time.Time) bool { return !at.After(began) })
		if !waits || n.flying > 0 || !n.attempted[name].Before(began) || !j.healthy(n) {
			return
		}
		for token, seen := range j.grants[name] {
			if seen.Holder == n.name && j.live(name, token) {
				return // it was handed off
			}
		}
		j.world.failf("order: %s %s %q, and makes no attempt", n.name, after, name)
	})
}

// leaves judges the deletion of a ticket, which must not be of one that was drawn after it was sent.
func (j *judge) leaves(n *Node, t leasetable.Ticket, sent time.Time) {
	if j.late { // its client can't know
		return
	}
	for _, name := range t.Names {
		for _, w := range j.world.server.Tickets(name) {
			gone := w.Client == t.Client && (t.Number == leasetable.AnyTicket || t.Number == w.Number)
			if drawn, ok := j.drawn[w.Number]; gone && ok && drawn.After(sent) && !j.strays[w.Number] && j.healthy(n) {
				j.world.failf("order: %s deletes the ticket %d for %q, which it has drawn since the deletion began", n.name, w.Number, name)
			}
		}
	}
}

// pass notes what has happened to a line until now, when nothing but the time has changed it.
func (l *line) pass(now time.Time) {
	changed := now
	for ; len(l.queue) > 0 && !l.queue[0].Expires.After(now); l.queue = l.queue[1:] {
		changed = l.queue[0].Expires
	}
	if len(l.queue) > 0 && l.head != l.queue[0].Number {
		l.head, l.since = l.queue[0].Number, changed
	}
	if full := l.lacked(1, now); full.After(l.full) {
		l.full = full
	}
	if blocked := l.lacked(l.wanted(), now); blocked.After(l.blocked) {
		l.blocked = blocked
	}
}

// lacked returns when fewer than n permits were free for the last time.
func (l *line) lacked(n int, now time.Time) (last time.Time) {
	if l.room(now) < n {
		return now
	}
	for _, g := range l.grants {
		if l.room(g.Expires.Add(-1)) < n && g.Expires.After(last) && !g.Expires.After(now) {
			last = g.Expires
		}
	}
	return last
}

// untold reports whether no release has told the head that the lock is free: the one before it was told, and has drawn
// another ticket.
func (l *line) untold() bool { return l.redrawn.After(l.blocked) }

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
func (j *judge) inOrder(l *line, g memory.Grant, what event) {
	now := time.Now()
	a, asked := j.asking[g.Request]
	if !asked || a.ticket == leasetable.BargeTicket {
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
	if before == 0 || l.room(now) >= wanted || now.Sub(l.redrawn) < timing.HeadGrace || l.untold() {
		return
	}
	if now.Sub(l.full) < timing.HeadGrace {
		j.world.failf("order: %q is granted to %s, token %d, before %d others, the first of which has the ticket %d (%v)", g.Name, g.Holder, g.Token, before, head.Number, what)
	} else if n := j.owner(head); n != nil && j.healthy(n) && !j.wantsMore(n, g.Name) && now.Sub(l.since) > timing.HeadGrace && j.quiet() {
		j.world.failf("order: %q is granted to %s, token %d, and the head of the queue, %s with the ticket %d, is skipped without a reason (%v)", g.Name, g.Holder, g.Token, n.name, head.Number, what)
	}
}

// idle judges the time for which a lock is free and its queue has a head that could be granted it.
func (j *judge) idle() {
	now := time.Now()
	for _, l := range j.all {
		l.pass(now)
		// A ticket for several names may wait for another one.
		if len(l.queue) == 0 || l.room(now) < l.wanted() || strings.Contains(l.queue[0].Client, "/") {
			continue
		}
		free := l.since
		if l.blocked.After(free) {
			free = l.blocked
		}
		bound := Lagging
		if j.quiet() && !l.untold() {
			bound = Prompt
		}
		if n := j.owner(l.queue[0]); n != nil && j.healthy(n) && !j.wantsMore(n, l.name) && now.Sub(free) > bound {
			j.world.failf("I6: %q is free for %v, and the head of its queue, %s, is not granted it", l.name, now.Sub(free), n.name)
			l.since = now
		}
	}
}

// wantsMore reports whether a process may want more permits than its ticket says.
func (j *judge) wantsMore(n *Node, name string) bool {
	return time.Since(j.barges[waiting{n, name}]) < timing.HeadGrace
}

// healthy reports whether a process lives, and no fault has delayed it lately.
func (j *judge) healthy(n *Node) bool {
	return !n.dead && !n.leaving && time.Since(n.struck) > Disturbed && time.Since(n.restUntil) > Disturbed && time.Since(j.world.busyUntil) > Disturbed
}

// quiet reports whether notifications arrive.
func (j *judge) quiet() bool {
	return j.world.plan.deaf == 0 || j.world.Now() > Faulty+Lagging
}
