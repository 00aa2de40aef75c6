package memory

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/timing"
	"github.com/pglock/pglock-go/leasetable"
)

// wait is a call that waits while it holds locks, or one that holds nothing and that others wait behind.
type wait struct {
	number  int64 // 0: it holds nothing
	id      string
	holder  string
	ticket  int64
	weights map[string]int // of the names that it waits for
	holds   []fencing.Token
	holders []string // of each of them
	expires time.Time
}

// needs is that a wait needs another one to end.
type needs struct {
	name    string
	weight  int
	granted bool // the other one holds the lock; otherwise it is before it in the queue
	blocker *wait
}

// NestedWait is leasetable.Table.NestedWait.
func (c *Store) NestedWait(ctx context.Context, n *leasetable.NestedWait) (cycle string, err error) {
	n = &leasetable.NestedWait{Request: own(n.Request), Holds: n.Holds, Holders: n.Holders}
	return ask(ctx, c, Message{Op: "nested_wait", About: n.Request, Repeatable: true}, func() (cycle string) {
		s, now := c.server, time.Now()
		w := &wait{0, n.ID, n.Holder, n.Ticket, map[string]int{}, n.Holds, n.Holders, now.Add(timing.NestedWaitTTL)}
		s.nested = slices.DeleteFunc(s.nested, func(v *wait) bool {
			if v.id == n.ID {
				w.number = v.number
			}
			return v.id == n.ID || !v.expires.After(now)
		})
		if w.number == 0 {
			s.sequence++
			w.number = s.sequence
		}
		for _, name := range n.Names() {
			w.weights[name] = max(n.PermitsOf(name).Weight, 1)
		}
		if cycle = s.findDeadlock(w, now); cycle == "" {
			s.nested = append(s.nested, w)
		}
		return cycle
	})
}

// EndNestedWait is leasetable.Table.EndNestedWait.
func (c *Store) EndNestedWait(ctx context.Context, id string) error {
	return c.do(ctx, Message{Op: "end_nested_wait", Repeatable: true}, func() {
		c.server.nested = slices.DeleteFunc(c.server.nested, func(w *wait) bool { return w.id == id })
	})
}

// findDeadlock is find_deadlock of the migration, which says why: what is left of all waits, without those that
// would be granted if everybody else released what they hold, is stuck.
func (s *Server) findDeadlock(w *wait, now time.Time) string {
	stuck := append(slices.Clone(s.nested), w)
	known := map[int64]*wait{} // by ticket
	for _, n := range stuck {
		known[n.ticket] = n
	}
	for _, name := range s.order {
		l := s.names[name]
		for _, q := range l.queue(now, leasetable.NoTicket) {
			switch u := known[q.ticket]; {
			case u == nil && (l.capacity > 0 || strings.Contains(q.client, "/")):
				u = &wait{holder: q.holder, ticket: q.ticket, weights: map[string]int{name: q.weight}}
				known[q.ticket], stuck = u, append(stuck, u)
			case u != nil && u.number == 0:
				u.weights[name] = q.weight
			}
		}
	}
	for before := -1; before != len(stuck); {
		before = len(stuck)
		all := slices.Clone(stuck)
		stuck = slices.DeleteFunc(stuck, func(u *wait) bool { return len(s.needsOf(u, all, now)) == 0 })
	}
	path, found := s.cycle(w, stuck, now, true)
	if !found {
		path, found = s.cycle(w, stuck, now, false)
	}
	granted := func(n needs) bool { return n.granted }
	if !found || !slices.ContainsFunc(stuck, func(u *wait) bool { return slices.ContainsFunc(s.needsOf(u, stuck, now), granted) }) {
		return "" // if none of them holds a lock, all will be released
	}
	words := make([]string, len(path))
	waiter := w
	for i, n := range path {
		how := fmt.Sprintf("where %s is before it", n.blocker.holder)
		if n.granted {
			how = fmt.Sprintf("which %s holds", n.blocker.holder)
		}
		words[i] = fmt.Sprintf(`%s waits for "%s", %s`, waiter.holder, n.name, how)
		if waiter = n.blocker; waiter.number > w.number {
			return "" // that one is younger
		}
	}
	return strings.Join(words, "; ")
}

// needsOf returns what keeps a wait from being granted a name, if the stuck ones keep what they hold.
func (s *Server) needsOf(u *wait, stuck []*wait, now time.Time) (found []needs) {
	for _, name := range slices.Sorted(maps.Keys(u.weights)) {
		weight := u.weights[name]
		l, sum := s.lock(name), weight
		var here []needs
		for _, g := range l.live(now) {
			before := len(here)
			for _, v := range stuck {
				if i := slices.Index(v.holds, g.token); i >= 0 && v.holders[i] == g.holder {
					here = append(here, needs{name, g.weight, true, v})
				}
			}
			if len(here) > before {
				sum += g.weight
			}
		}
		for _, v := range stuck {
			if ahead, ok := v.weights[name]; ok && v != u && s.before(l, v, u) && (l.capacity > 0 || len(v.weights) > 1) {
				here, sum = append(here, needs{name, ahead, false, v}), sum+ahead
			}
		}
		if sum > l.size() {
			found = append(found, here...)
		}
	}
	return found
}

// before reports whether the queue of the lock has v before u. Those without a ticket, or with one that is used
// up, are behind the others, and those that overtake are before nobody.
func (s *Server) before(l *lock, v, u *wait) bool {
	valid := func(w *wait) bool { return w.ticket > l.ticket && w.ticket != leasetable.NoTicket }
	return valid(v) && (!valid(u) && u.ticket != leasetable.BargeTicket || v.ticket < u.ticket)
}

// cycle returns the shortest path of stuck waits from w to itself, with alone of what keeps each one
// waiting by itself. A call that holds permits of what it waits for does not wait for itself.
func (s *Server) cycle(w *wait, stuck []*wait, now time.Time, alone bool) (path []needs, found bool) {
	type step struct {
		waiter *wait
		needs
	}
	to := map[*wait]step{} // of each blocker that was found
	for level := []*wait{w}; len(level) > 0 && to[w].waiter == nil; {
		var next []*wait
		for _, u := range level {
			for _, n := range s.needsOf(u, stuck, now) {
				leaves := n.weight <= s.lock(n.name).size()-u.weights[n.name]
				if to[n.blocker].waiter == nil && (!leaves || !alone && n.blocker != u) {
					to[n.blocker], next = step{u, n}, append(next, n.blocker)
				}
			}
		}
		level = next
	}
	for at := to[w]; at.waiter != nil; at = to[at.waiter] {
		if path = append(path, at.needs); at.waiter == w {
			break
		}
	}
	slices.Reverse(path)
	return path, len(path) > 0
}
