package sim

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/timing"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/internal/backend"
	"github.com/pglock/pglock-go/pglock/internal/memory"
	"github.com/pglock/pglock-go/pglock/observe"
)

// judge compares what the server has with what was promised. Its world's mu guards it.
type judge struct {
	world     *World
	names     []string                                // that the last look was about
	grants    map[string]map[fencing.Token]*grantSeen // by name
	newest    map[string]fencing.Token                // of a name
	excused   map[fencing.Token]bool                  // the plan has ended their grants
	revoked   map[fencing.Token]bool
	upgraded  map[fencing.Token]fencing.Token
	givenUp   map[string]bool         // requests whose grants were lost or handed over
	waits     map[waiting][]time.Time // since when calls wait
	rewound   bool                    // the plan has changed grants since the last look
	rewoundAt time.Time               // when it did so for the last time
	unchanged bool                    // by this statement
	expiry    time.Time               // when a look comes because a grant expires
	over      bool
	late      bool // this statement arrives after its caller has left
	twice     bool // this statement arrives twice: a grant of it may have no owner

	order
	bounds
}

// grantSeen is a grant that the judge has seen.
type grantSeen struct {
	memory.Grant
	first time.Time
	live  bool // the last look at its name has seen it

	ownerless bool      // perhaps
	late      bool      // its caller has left: attempts to revoke it have pauses, and Close awaits two
	held      time.Time // when its client had a lease of it, or the grant was excused
	lost      time.Time // when that lease was lost: a release for a few seconds is all that follows
	asked     time.Time // since when its holder is asked to release it
	deadline  time.Time // of its lease
}

func newJudge(w *World) judge {
	return judge{
		world: w, newest: map[string]fencing.Token{}, grants: map[string]map[fencing.Token]*grantSeen{}, excused: map[fencing.Token]bool{},
		revoked: map[fencing.Token]bool{}, upgraded: map[fencing.Token]fencing.Token{}, givenUp: map[string]bool{}, waits: map[waiting][]time.Time{},
		order: newOrder(), bounds: newBounds(),
	}
}

// waiting is what calls wait for.
type waiting struct {
	node *Node
	name string
}

// event is what has just happened: a statement of a process, or a fault.
type event struct {
	node      *Node
	op, about string
}

func (e event) String() string {
	if e.node == nil {
		return e.op
	}
	return fmt.Sprintf("%s %q of %s", e.op, e.about, e.node.name)
}

// look looks at the world after what has just happened. The caller holds the world's mu.
func (j *judge) look(what event) {
	if reads[what.op] || j.unchanged {
		j.unchanged, j.twice, j.late = false, false, false
		if j.world.tracing {
			j.world.tracef("· %v", what)
		}
		j.check(what)
		return
	}
	j.names = j.world.server.Touched(j.names[:0])
	if j.rewound { // what is forgotten was not touched
		for _, l := range j.all {
			j.names = append(j.names, l.name)
		}
	}
	for _, name := range j.names {
		j.lookAt(name, what)
	}
	j.rewound, j.twice, j.late = false, false, false
	if j.world.tracing && what.op == "commit" {
		j.world.tracef("%v", what)
	}
	j.trust(what)
	j.lookAgain()
	j.check(what)
}

// lookAt looks at a name.
func (j *judge) lookAt(name string, what event) {
	l, now := j.lines[name], time.Now()
	if l == nil {
		l = &line{name: name}
		j.lines[name], j.all = l, append(j.all, l)
	}
	l.pass(now)
	before, after, sum := l.grants, []*grantSeen(nil), 0
	size := j.world.server.GrantsOf(name, func(g memory.Grant) {
		if sum += g.Weight; sum > g.Size && sum-g.Weight <= g.Size {
			j.world.failf("I1: %d of %d permits of %q are granted (%v)", sum, g.Size, g.Name, what)
		}
		l.size = cmp.Or(l.size, g.Size) // a new row
		after = append(after, j.see(l, g, what))
	})
	l.grants = after
	if size > 0 { // a row that was pruned is free
		l.size = size
	}
	for _, g := range before {
		if g.live = slices.Contains(after, g); !g.live && j.world.tracing {
			j.world.tracef("the grant %d of %q has ended, until %v: %v", g.Token, name, g.Expires.Sub(j.world.began), what)
		}
	}
	l.queue = j.world.server.Tickets(name)
	if j.rewound {
		l.full = time.Time{} // by the server's clock it may have been free for long
	}
	l.pass(now)
}

// reads are the statements that change neither grants nor queues.
var reads = map[string]bool{
	"get": true, "notify": true, "check": true, "begin": true, "query": true, "exec": true, "watch": true, "ping": true, "read_record": true,
	"claim": true, "finish": true, "forget": true, "nested_wait": true, "end_nested_wait": true, "check_grants": true, "granted_to": true,
	"set_labels": true, "await_guards": true, "listen": true,
}

// lookAgain looks at the next expiry of a grant, which no lease may outlive.
func (j *judge) lookAgain() {
	now := time.Now()
	var at time.Time
	for _, l := range j.all {
		for _, g := range l.grants {
			if g.Expires.After(now) && (at.IsZero() || g.Expires.Before(at)) {
				at = g.Expires
			}
		}
	}
	if at.IsZero() || now.Before(j.expiry) && !at.Before(j.expiry) {
		return // an earlier look comes first
	}
	j.expiry = at
	time.AfterFunc(time.Until(at), func() {
		w := j.world
		w.mu.Lock()
		defer w.mu.Unlock()
		if j.expiry.Equal(at) && !j.over {
			j.look(event{op: "expiry"})
		}
	})
}

// check calls the checks of the world's user.
func (j *judge) check(what event) {
	for _, check := range j.world.checks {
		if err := check(); err != nil {
			j.world.failf("%v (%v)", err, what)
		}
	}
}

// givesUp notes a grant whose client does not revoke what its statement, arriving once more, is granted.
func (j *judge) givesUp(name string, token fencing.Token) {
	if seen := j.grants[name][token]; seen != nil {
		j.givenUp[seen.Request] = true
	}
}

// see notes a grant.
func (j *judge) see(l *line, g memory.Grant, what event) *grantSeen {
	ofName := j.grants[g.Name]
	if ofName == nil {
		ofName = map[fencing.Token]*grantSeen{}
		j.grants[g.Name] = ofName
	}
	seen := ofName[g.Token]
	if seen == nil {
		now := time.Now()
		seen = &grantSeen{first: now, held: now, ownerless: j.twice || j.late && j.givenUp[g.Request], late: j.late}
		ofName[g.Token] = seen
		if j.world.tracing {
			j.world.tracef("%q is granted to %s, token %d, weight %d of %d, until %v: %v", g.Name, g.Holder, g.Token, g.Weight, g.Size, g.Expires.Sub(j.world.began), what)
		}
		if g.Token <= j.newest[g.Name] {
			j.world.failf("I2: the token %d of %q is not above %d (%v)", g.Token, g.Name, j.newest[g.Name], what)
		}
		j.newest[g.Name] = g.Token
		j.inOrder(l, g, what)
		j.afterHold(g, what)
	} else if revived := !seen.live || !seen.Expires.After(time.Now()); revived && j.rewound {
		j.excused[g.Token] = true
	} else if revived {
		j.world.failf("I5: the grant of %q, token %d, lives again (%v)", g.Name, g.Token, what)
	}
	j.longest[g.Name] = max(j.longest[g.Name], time.Until(g.Expires))
	if seen.live, seen.Grant = true, g; !g.Asked { // or a failover has lost the request
		seen.asked = time.Time{}
	} else if seen.asked.IsZero() {
		seen.asked = time.Now()
	}
	if j.excused[g.Token] {
		seen.held = time.Now()
	}
	return seen
}

// live reports whether a grant lives.
func (j *judge) live(name string, token fencing.Token) bool {
	seen := j.grants[name][token]
	return seen != nil && seen.live && seen.Expires.After(time.Now())
}

// trust compares the leases that clients trust with the grants.
func (j *judge) trust(what event) {
	for _, n := range j.world.nodes {
		if n.Client == nil || n.left {
			continue
		}
		for _, l := range backend.Inside.Leases(n.Client).([]*pglock.Lease) {
			// Err of a lease whose time is over would raise an event, whose hook waits for mu.
			deadline := l.Deadline()
			if !time.Now().Before(deadline) || l.Err() != nil || j.excused[l.Token()] || j.revoked[l.Token()] || j.upgraded[l.Token()] != 0 {
				continue
			}
			fences := l.Fences()
			j.extends(n, l, fences[0], deadline)
			for _, f := range fences {
				if !j.live(f.Name, f.Token) {
					j.world.failf("I3: %s trusts its lease of %q, token %d, whose grant has ended (%v)", n.name, f.Name, f.Token, what)
					j.excused[f.Token] = true
				}
			}
		}
	}
}

// excuse excuses the grants that live and whose end the plan has changed, and forgets the shortest holds of
// those that were released.
func (j *judge) excuse(changed func(f fencing.Fence, until time.Time) bool) {
	j.rewound, j.rewoundAt = true, time.Now()
	clear(j.reserved)
	for _, l := range j.all {
		for _, g := range l.grants {
			if changed(fencing.Fence{Name: g.Name, Token: g.Token}, g.Expires) && g.Expires.After(time.Now()) {
				j.excused[g.Token] = true
			}
		}
	}
}

// hooks note what a process waits for and loses.
func (j *judge) hooks(n *Node) observe.Hooks {
	w := j.world
	locked := func(act func()) {
		w.mu.Lock()
		defer w.mu.Unlock()
		act()
	}
	return observe.Hooks{
		Wait: func(_ context.Context, e observe.WaitEvent) {
			locked(func() {
				calls := waiting{n, e.Name}
				j.waits[calls] = append(j.waits[calls], time.Now())
			})
		},
		Acquire: func(_ context.Context, e observe.AcquireEvent) {
			locked(func() {
				if w.tracing {
					w.tracef("%s: acquire of %q: %s, token %d %v", n.name, e.Name, e.Outcome, e.Token, e.Err)
				}
				if e.Queued {
					j.endWait(n, e)
				}
			})
		},
		Release: func(_ context.Context, e observe.ReleaseEvent) {
			locked(func() {
				if e.HandedOver {
					j.excused[e.Token] = true
					j.givesUp(e.Name, e.Token)
				}
				w.tracef("%s: release of %q, token %d: %v", n.name, e.Name, e.Token, e.Err)
				// The release may have been lost while its answer was on its way.
				if seen, d := j.grants[e.Name][e.Token], j.holds[e.Token]; d > 0 && e.Err == nil && !j.excused[e.Token] && seen.first.After(j.rewoundAt) {
					j.reserved[e.Name] = seen.first.Add(d)
				}
				if e.Err == nil && !j.excused[e.Token] && j.live(e.Name, e.Token) {
					w.failf("release: %s has released %q, token %d, without an error, and the grant lives", n.name, e.Name, e.Token)
				}
			})
		},
		Loss: func(_ context.Context, e observe.LossEvent) {
			locked(func() {
				w.tracef("%s: %q is lost, token %d: %s", n.name, e.Name, e.Token, e.Reason)
				j.givesUp(e.Name, e.Token)
				if seen := j.grants[e.Name][e.Token]; seen != nil {
					seen.lost = time.Now()
				}
				since := time.Now().Add(-min(e.Held+timing.StatementBound, Disturbed)) // the answer to the acquire may have been lost
				canceled := w.work.Err() != nil                                        // an upgrade with the work, and that loses the reader
				if n.struck.Before(since) && !canceled && !j.excused[e.Token] && !j.revoked[e.Token] && j.upgraded[e.Token] == 0 && !n.dead && e.Reason != observe.LossMaxHold {
					w.failf("I3: %s has lost %q, token %d (%s), without a fault since its grant", n.name, e.Name, e.Token, e.Reason)
				}
			})
		},
	}
}

// endWait forgets the wait of a call, which began soonest after the call.
func (j *judge) endWait(n *Node, e observe.AcquireEvent) {
	calls := waiting{n, e.Name}
	if i := slices.IndexFunc(j.waits[calls], func(at time.Time) bool { return !at.Before(e.Began) }); i >= 0 {
		j.waits[calls] = slices.Delete(j.waits[calls], i, i+1)
	}
}

// starved reports calls that have waited for longer than a bound, without faults, for a lock that has been free for
// long, or that was granted more than three times for each call that waits: once before this one, once more when that
// has lost its place behind a dead head, and once to calls that do not wait any more.
func (j *judge) starved(bound time.Duration) {
	callers := map[string]int{}
	for calls, all := range j.waits {
		callers[calls.name] += len(all)
	}
	for calls, all := range j.waits {
		for _, at := range all {
			d, granted := time.Since(at), 0
			for _, seen := range j.grants[calls.name] {
				if seen.first.After(at) {
					granted++
				}
			}
			l := j.lines[calls.name]
			free := l == nil || time.Since(l.full) > bound/2
			// A long lease of a process that has crashed explains a long wait.
			if d > bound && (free || granted > 3*callers[calls.name]) && !calls.node.dead && j.longest[calls.name] < bound/2 {
				j.world.failf("I6: a call of %s has waited for %q for %v, and it was granted %d times meanwhile", calls.node.name, calls.name, d, granted)
			}
		}
	}
}

// end judges what is left when all processes have left.
func (j *judge) end() (granted int) {
	j.over = true
	j.endOfBounds()
	j.world.server.Grants(func(g memory.Grant) {
		if seen := j.grants[g.Name][g.Token]; seen.first.After(j.world.began.Add(Faulty+10*time.Second)) && !j.excused[g.Token] && !seen.late {
			j.world.failf("I9: the grant of %q, token %d, to %s is left", g.Name, g.Token, g.Holder)
		}
	})
	for _, ofName := range j.grants {
		granted += len(ofName)
	}
	return granted
}
