package sim

import (
	"time"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/leasetable"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/internal/backend"
	"github.com/pglock/pglock-go/pglock/internal/memory"
)

// Bounds of what takes time.
const (
	// Disturbed is how long a fault may have effects: messages that are late, pauses that grow, and a
	// new listening connection.
	Disturbed = 20 * time.Second

	Prompt  = 2 * time.Second  // until a free lock is granted, if notifications arrive
	Lagging = 15 * time.Second // if they don't: until tickets are refreshed

	// Orphaned is how long a grant may live that no lease is for, after the last fault of its process or
	// of a statement about its name: as long as the pauses between two attempts to revoke it.
	Orphaned = 11 * time.Second
	Settled  = 2 * time.Second // without a fault

	Noticed = 18 * time.Second // until the holder of a revoked grant knows: its next renewal
	Heard   = 3 * time.Second  // with a listening connection that is new
	Late    = 8 * time.Second  // the longest time by which a fault makes a message late
)

// bounds is what the judge knows of things that must end soon.
type bounds struct {
	revokedAt map[fencing.Token]time.Time
	holds     map[fencing.Token]time.Duration // by WithMinHold
	reserved  map[string]time.Time            // until when a lock is not free for that reason
	longest   map[string]time.Duration        // until the expiry of a grant, by name
	ticks     []func()
}

func newBounds() bounds {
	return bounds{map[fencing.Token]time.Time{}, map[fencing.Token]time.Duration{}, map[string]time.Time{}, map[string]time.Duration{}, nil}
}

// tick looks at what takes time.
func (j *judge) tick() {
	j.idle()
	j.orphans()
	for _, f := range j.ticks {
		f()
	}
}

// leases returns the leases of a process, none before its client is open.
func (n *Node) leases() []*pglock.Lease {
	if n.Client == nil {
		return nil
	}
	return backend.Inside.Leases(n.Client).([]*pglock.Lease)
}

// revokes notes a revocation.
func (j *judge) revokes(token fencing.Token, answer leasetable.GrantCall) {
	if answer.Done && !j.revoked[token] {
		j.revoked[token], j.revokedAt[token] = true, time.Now()
	}
}

// orphans judges the grants that no lease is for, and the leases whose grants were revoked.
func (j *judge) orphans() {
	now := time.Now()
	have := map[string]bool{} // requests: the client of a lease revokes later what else they are granted
	owners := map[string]*Node{}
	for _, n := range j.world.nodes {
		if n.Client == nil || n.left || n.dead {
			continue
		}
		owners[n.name] = n
		for _, l := range n.leases() {
			if seen := j.grants[l.Fences()[0].Name][l.Token()]; seen != nil {
				have[seen.Request] = true
			}
			at, revoked := j.revokedAt[l.Token()]
			if revoked && now.Sub(at) > Noticed && now.Before(l.Deadline()) && l.Err() == nil && !j.excused[l.Token()] && j.healthy(n) {
				j.world.failf("revoke: %s does not know that its grant of %q, token %d, was revoked %v ago", n.name, l.Name(), l.Token(), now.Sub(at))
				delete(j.revokedAt, l.Token())
			}
		}
	}
	j.world.server.Grants(func(g memory.Grant) {
		seen, n := j.grants[g.Name][g.Token], owners[g.Holder]
		if seen == nil {
			return
		}
		forgotten := !seen.lost.IsZero() && n != nil && n.struck.After(seen.lost)
		if have[g.Request] || forgotten || seen.ownerless || n == nil || n.leaving || j.excused[g.Token] || j.upgraded[g.Token] != 0 || now.Before(n.restUntil) || now.Before(j.world.busyUntil) {
			seen.held = now
			return
		}
		bound, since := Orphaned, seen.held
		if j.healthy(n) && !seen.late {
			bound = Settled
		} else {
			for _, about := range []string{g.Name, allStatements} {
				if last := n.hindered[about]; last.After(since) {
					since = last
				}
			}
		}
		if d := now.Sub(since); d > bound {
			j.world.failf("I9: %s has no lease of its grant of %q, token %d, for %v", n.name, g.Name, g.Token, d)
			j.excused[g.Token] = true
		}
	})
}

// extends judges the deadline of a lease, which a renewal does not shorten.
func (j *judge) extends(n *Node, l *pglock.Lease, f fencing.Fence, deadline time.Time) {
	if seen := j.grants[f.Name][f.Token]; seen != nil {
		if deadline.Before(seen.deadline) && seen.Holder == n.name {
			j.world.failf("renewal: %s has the deadline of its lease of %q, token %d, shortened by %v", n.name, l.Name(), l.Token(), seen.deadline.Sub(deadline))
		}
		seen.deadline = deadline
	}
}

// afterHold judges a new grant of a name whose last one had a shortest hold.
func (j *judge) afterHold(g memory.Grant, what event) {
	if until := j.reserved[g.Name]; time.Now().Before(until) {
		j.world.failf("hold: %q is granted, token %d, %v before the shortest hold of the last grant is over (%v)", g.Name, g.Token, time.Until(until), what)
	}
}

// listens notes that a process has a new listening connection: soon it knows of all requests to its
// holders. Those whose grants are still on their way know with their next renewal.
func (j *judge) listens(n *Node) {
	have := map[fencing.Token]bool{}
	for _, l := range n.leases() {
		have[l.Token()] = true
	}
	j.knowsSoon(n, "it listens again", func(l *pglock.Lease) bool { return have[l.Token()] })
}

// signaled notes that a process was notified of a request to one of its holders, or perhaps to one whose
// grant is on its way: soon it knows of it. If its answer is late, many others may have come meanwhile,
// of which a client remembers few.
func (j *judge) signaled(n *Node, token fencing.Token) {
	j.knowsSoon(n, "it was notified", func(l *pglock.Lease) bool { return l.Token() == token })
}

func (j *judge) knowsSoon(n *Node, after string, which func(*pglock.Lease) bool) {
	began := time.Now()
	time.AfterFunc(Heard, func() {
		w := j.world
		w.mu.Lock()
		defer w.mu.Unlock()
		if n.dead || n.leaving || !n.struck.Before(began.Add(-Late)) || time.Since(w.busyUntil) < Heard || time.Since(n.restUntil) < Heard {
			return
		}
		for _, l := range n.leases() {
			seen := j.grants[l.Fences()[0].Name][l.Token()]
			if !which(l) || !time.Now().Before(l.Deadline()) || seen == nil {
				continue
			}
			at, revoked := j.revokedAt[l.Token()]
			switch early := l.Err() == nil && !j.excused[l.Token()] && seen.first.Before(began); {
			case early && revoked && at.Before(began):
				w.failf("signal: %s does not know that its grant of %q, token %d, was revoked, %v after %s", n.name, l.Name(), l.Token(), Heard, after)
			case early && seen.Asked && j.live(l.Fences()[0].Name, l.Token()) && !seen.asked.IsZero() && seen.asked.Before(began) && l.ReleaseReason() == "":
				w.failf("signal: %s does not know that it is asked for %q, token %d, %v after %s", n.name, l.Name(), l.Token(), Heard, after)
			}
		}
	})
}

// endOfBounds judges what is left when all processes have left.
func (j *judge) endOfBounds() {
	for _, name := range j.world.server.Names() {
		for _, w := range j.world.server.Tickets(name) {
			if n := j.owner(w); n != nil && n.left && n.crashless() && time.Since(n.struck) > Disturbed {
				j.world.failf("I9: the ticket %d of %s for %q is left", w.Number, n.name, name)
			}
		}
	}
	for _, holder := range j.world.server.NestedWaits() {
		for _, n := range j.world.nodes {
			if n.name == holder && n.left && n.crashless() && time.Since(n.struck) > Disturbed {
				j.world.failf("I9: a nested wait of %s is left", holder)
			}
		}
	}
}

// crashless reports whether the process has ended by itself.
func (n *Node) crashless() bool { return !n.crashed }
