package sim

import (
	"cmp"
	"os"
	"testing"
	"time"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/pglock/internal/memory"
	"github.com/pglock/pglock-go/pglock/observe"
)

// worlds is the number of worlds in the short form.
var worlds uint64 = 500

// TestWorlds runs the worlds of everything that a client can do.
func TestWorlds(t *testing.T) {
	if cmp.Or(os.Getenv("PGLOCK_SIM"), os.Getenv("PGLOCK_SEED")) != "" {
		Simulate(t, everything)
		return
	}
	began := time.Now()
	failure, runs := Search(t, 1, worlds, time.Hour, everything)
	if failure != "" {
		t.Error(failure)
	}
	logRate(t, runs, began)
}

// TestControl: processes with a mistake are found.
func TestControl(t *testing.T) {
	failure, runs := Search(t, 1, 100, time.Hour, careless)
	if failure == "" {
		t.Errorf("%d worlds, and no write was late", runs)
	}
}

// TestAShortFaultEndsNoLongOne: what strikes a process that rests makes its rest no shorter, neither
// for its messages nor for the judge.
func TestAShortFaultEndsNoLongOne(t *testing.T) {
	w := newWorld(plan{})
	n := w.newNode(0, "worker 1")
	w.strike(0, Fault{Node: -1, Kind: rests, For: time.Hour})
	long := n.restUntil
	w.strike(0, Fault{Node: -1, Kind: cut})
	n.suffers("renew", "a", lost)
	n.stall(time.Second)
	if n.restUntil != long || n.struck != long || n.hindered[allStatements] != long {
		t.Errorf("rests until %v, is struck until %v, hindered until %v; want %v", n.restUntil, n.struck, n.hindered[allStatements], long)
	}
	w.strike(0, Fault{Node: -1, Kind: hangs, For: time.Minute})
	busy := w.busyUntil
	w.strike(0, Fault{Node: -1, Kind: hangs, For: time.Second})
	if w.busyUntil != busy {
		t.Errorf("the server hangs until %v, want %v", w.busyUntil, busy)
	}
}

// TestAHeadThatDrawsAnotherTicket takes with it what a release has told it, so the next waiter may be skipped: not if
// the lock became free after that, or without another ticket.
func TestAHeadThatDrawsAnotherTicket(t *testing.T) {
	for when, redrawn := range map[string]time.Duration{"while the lock is free": -2 * time.Second, "before": -4 * time.Second, "never": -time.Hour} {
		w := newWorld(plan{})
		j, now := &w.judge, time.Now()
		j.clients["b"] = w.newNode(0, "worker 1")
		j.asking["request"] = asked{ticket: 7}
		l := &line{
			name: "n", queue: []memory.Ticket{{Number: 5, Client: "b", Weight: 1, Expires: now.Add(time.Minute)}}, size: 1,
			full: now.Add(-3 * time.Second), blocked: now.Add(-3 * time.Second), since: now.Add(-2 * time.Second), redrawn: now.Add(redrawn),
		}
		j.inOrder(l, memory.Grant{Name: "n", Size: 1, Weight: 1, Request: "request"}, event{})
		if skipped := len(w.failures) > 0; skipped != (redrawn < -3*time.Second) {
			t.Errorf("%s: %v", when, w.failures)
		}
	}
}

// TestAFailoverLosesAShortestHold, also of a release whose answer arrives after it.
func TestAFailoverLosesAShortestHold(t *testing.T) {
	w := newWorld(plan{})
	j := &w.judge
	released := func(token fencing.Token) bool {
		j.holds[token] = time.Hour
		j.hooks(w.newNode(0, "worker 1")).Release(t.Context(), observe.ReleaseEvent{Name: "n", Token: token})
		return !j.reserved["n"].IsZero()
	}
	j.grants["n"] = map[fencing.Token]*grantSeen{1: {first: time.Now()}}
	before := released(1)
	w.strike(0, Fault{Node: -1, Kind: fails})
	lost, late := j.reserved["n"].IsZero(), released(1)
	j.grants["n"][2] = &grantSeen{first: time.Now()}
	if after := released(2); !before || !lost || late || !after {
		t.Errorf("reserved: before the failover %v, after it %v, by a late answer %v, by the next grant %v", before, !lost, late, after)
	}
}

// TestStarved: a call waits for long behind others that hold a lock for long. It is starved if the lock is free, or if
// it is passed over.
func TestStarved(t *testing.T) {
	for name, is := range map[string]struct {
		granted int
		free    time.Duration
		starved bool
	}{"held": {3, 0, false}, "free": {1, Starved, true}, "passed over": {4, 0, true}} {
		w := newWorld(plan{})
		j, now := &w.judge, time.Now()
		j.waits[waiting{w.newNode(0, "worker 1"), "n"}] = []time.Time{now.Add(-2 * Starved)}
		j.lines["n"] = &line{name: "n", full: now.Add(-is.free)}
		j.grants["n"] = map[fencing.Token]*grantSeen{}
		for token := range fencing.Token(is.granted) {
			j.grants["n"][token+1] = &grantSeen{first: now.Add(-Starved)}
		}
		if j.starved(Starved); is.starved != (len(w.failures) > 0) {
			t.Errorf("%s: %v", name, w.failures)
		}
	}
}

// TestAFailoverLosesARequest for the release of a grant: a holder knows of the next one soon after that one.
func TestAFailoverLosesARequest(t *testing.T) {
	w := newWorld(plan{})
	g := memory.Grant{Name: "n", Size: 1, Weight: 1, Token: 1, Asked: true, Expires: time.Now().Add(time.Minute)}
	see := func(asked bool) time.Time {
		g.Asked = asked
		return w.judge.see(&line{name: "n"}, g, event{}).asked
	}
	first, repeated, lost, next := see(true), see(true), see(false), see(true)
	if first.IsZero() || !repeated.Equal(first) || !lost.IsZero() || !next.After(first) {
		t.Errorf("asked at %v, repeated %v, lost %v, again %v", first, repeated, lost, next)
	}
}
