package sim

import (
	"context"
	"fmt"
	"time"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/internal/backend"
	"github.com/pglock/pglock-go/pglock/internal/memory"
	"github.com/pglock/pglock-go/pglock/observe"
)

// judge compares what the server has with what was promised. Its world's mu guards it.
type judge struct {
	world    *World
	newest   map[string]fencing.Token // of a name
	seen     map[grantKey]time.Time   // when
	excused  map[fencing.Token]bool   // the plan has ended their grants
	revoked  map[fencing.Token]bool
	upgraded map[fencing.Token]fencing.Token
	waits    map[*Node]map[string][]time.Time // calls that wait, by name
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

type grantKey struct {
	name  string
	token fencing.Token
}

func newJudge(w *World) judge {
	return judge{
		world: w, newest: map[string]fencing.Token{}, seen: map[grantKey]time.Time{}, excused: map[fencing.Token]bool{},
		revoked: map[fencing.Token]bool{}, upgraded: map[fencing.Token]fencing.Token{}, waits: map[*Node]map[string][]time.Time{},
	}
}

// look looks at the world after what has just happened. The caller holds the world's mu.
func (j *judge) look(n *Node, op, about string) {
	what := event{n, op, about}
	rows := j.world.server.Rows()
	live := map[grantKey]bool{}
	for _, r := range rows {
		sum := 0
		for _, g := range r.Grants {
			key := grantKey{r.Name, g.Token}
			live[key] = true
			sum += g.Weight
			if _, known := j.seen[key]; known {
				continue
			}
			j.seen[key] = time.Now()
			j.world.tracef("%q is granted to %s, token %d, weight %d of %d, until %v: %s", r.Name, g.Holder, g.Token, g.Weight, r.Size, g.Expires.Sub(j.world.began), what)
			if g.Token <= j.newest[r.Name] {
				j.world.failf("I2: the token %d of %q is not above %d (%v)", g.Token, r.Name, j.newest[r.Name], what)
			}
			j.newest[r.Name] = g.Token
		}
		if sum > r.Size {
			j.world.failf("I1: %d of %d permits of %q are granted (%s)", sum, r.Size, r.Name, what)
		}
	}
	j.trust(live, what)
	for _, check := range j.world.checks {
		if err := check(); err != nil {
			j.world.failf("%v (%s)", err, what)
		}
	}
}

// trust compares the leases that clients trust with the grants.
func (j *judge) trust(live map[grantKey]bool, what event) {
	for _, n := range j.world.nodes {
		if n.Client == nil {
			continue
		}
		for _, l := range backend.Inside.Leases(n.Client).([]*pglock.Lease) {
			if l.Err() != nil || j.excused[l.Token()] || j.revoked[l.Token()] || j.upgraded[l.Token()] != 0 {
				continue
			}
			for _, f := range l.Fences() {
				if !live[grantKey{f.Name, f.Token}] {
					j.world.failf("I3: %s trusts its lease of %q, token %d, whose grant has ended (%s)", n.name, f.Name, f.Token, what)
					j.excused[f.Token] = true
				}
			}
		}
	}
}

// excuseAll excuses all grants, whose times a clock has changed.
func (j *judge) excuseAll() {
	for key := range j.seen {
		j.excused[key.token] = true
	}
}

// excuseMissing excuses the grants that a failover has lost.
func (j *judge) excuseMissing(before, after []memory.Row) {
	left := map[grantKey]time.Time{}
	for _, r := range after {
		for _, g := range r.Grants {
			left[grantKey{r.Name, g.Token}] = g.Expires
		}
	}
	for _, r := range before {
		for _, g := range r.Grants {
			if until, found := left[grantKey{r.Name, g.Token}]; !found || until.Before(g.Expires) {
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
				if j.waits[n] == nil {
					j.waits[n] = map[string][]time.Time{}
				}
				j.waits[n][e.Name] = append(j.waits[n][e.Name], time.Now())
			})
		},
		Acquire: func(_ context.Context, e observe.AcquireEvent) {
			locked(func() {
				w.tracef("%s: acquire of %q: %s, token %d %v", n.name, e.Name, e.Outcome, e.Token, e.Err)
				if e.Queued {
					j.endWait(n, e)
				}
			})
		},
		Release: func(_ context.Context, e observe.ReleaseEvent) {
			locked(func() {
				j.excused[e.Token] = j.excused[e.Token] || e.HandedOver
				w.tracef("%s: release of %q, token %d: %v", n.name, e.Name, e.Token, e.Err)
			})
		},
		Loss: func(_ context.Context, e observe.LossEvent) {
			locked(func() {
				w.tracef("%s: %q is lost, token %d: %s", n.name, e.Name, e.Token, e.Reason)
				since := time.Now().Add(-e.Held)
				if n.struck.Before(since) && !j.excused[e.Token] && !j.revoked[e.Token] && j.upgraded[e.Token] == 0 && !n.dead && e.Reason != observe.LossMaxHold {
					w.failf("I3: %s has lost %q, token %d (%s), without a fault since its grant", n.name, e.Name, e.Token, e.Reason)
				}
			})
		},
	}
}

// endWait forgets the wait of a call, which began soonest after the call.
func (j *judge) endWait(n *Node, e observe.AcquireEvent) {
	all := j.waits[n][e.Name]
	for i, at := range all {
		if !at.Before(e.Began) {
			j.waits[n][e.Name] = append(all[:i:i], all[i+1:]...)
			return
		}
	}
}

// starved reports calls that have waited for longer than a bound, at a time when nothing is in their way.
func (j *judge) starved(bound time.Duration) {
	for n, names := range j.waits {
		for name, all := range names {
			for _, at := range all {
				if d := time.Since(at); d > bound && !n.dead {
					j.world.failf("I6: a call of %s has waited for %q for %v", n.name, name, d)
				}
			}
		}
	}
}

// closed judges the end of a process.
func (j *judge) closed(n *Node, err error) {
	delete(j.waits, n)
	j.world.tracef("%s: closed: %v", n.name, err)
}

// end judges what is left when all processes have left, the last of which was at that time.
func (j *judge) end() {
	for _, r := range j.world.server.Rows() {
		for _, g := range r.Grants {
			if seen := j.seen[grantKey{r.Name, g.Token}]; seen.After(j.world.began.Add(Faulty+10*time.Second)) && !j.excused[g.Token] {
				j.world.failf("I9: the grant of %q, token %d, to %s is left", r.Name, g.Token, g.Holder)
			}
		}
	}
}

func (j *judge) String() string { return fmt.Sprintf("%d grants", len(j.seen)) }
