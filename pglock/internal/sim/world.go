// Package sim runs the processes of a program in one bubble of testing/synctest, where time costs
// nothing. Each has a real client, and one table in memory is the server. A plan that a seed draws
// decides what happens to each message between them, and to the processes and the server. A judge
// looks at the table, and at the leases that the clients trust, after each statement.
package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/backoff"
	"github.com/pglock/pglock-go/pglock/internal/memory"
)

// World is a run.
type World struct {
	server *memory.Server
	plan   plan
	began  time.Time
	work   *life          // of all processes: ends when the run does
	slots  sync.WaitGroup // of processes

	mu        sync.Mutex // one statement at a time; guards what follows
	judge     judge
	nodes     []*Node
	slotCount int
	happened  []Fault
	trace     []string // nil unless tracing
	tracing   bool
	busyUntil time.Time // the server hangs
	copies    map[int]func()
	tables    []interface{ copy() (restore func()) }
	checks    []func() error
	failures  []string
	losses    int // failovers that have lost what was committed
	source    rand.PCG
	rand      *rand.Rand // of source
	timers    []*time.Timer

	draws struct {
		sync.Mutex
		n      uint64 // of Random
		source rand.PCG
	}
}

func newWorld(p plan) *World {
	w := &World{server: memory.NewServer(), plan: p, began: time.Now(), copies: map[int]func(){}, work: newLife()}
	w.judge = newJudge(w)
	w.rand = rand.New(&w.source)
	return w
}

// Now returns the time since the start.
func (w *World) Now() time.Duration { return time.Since(w.began) }

// random is the source of the clients' random times. It depends on the time and on n alone: what
// happens at the same time happens in another order when a world runs again.
func (w *World) random(n int64) int64 { return w.draw(uint64(n), n) }

// draw returns a number less than n, from a source that the time and key seed.
func (w *World) draw(key uint64, n int64) int64 {
	d := &w.draws
	d.Lock()
	defer d.Unlock()
	d.source.Seed(w.plan.seed^key<<16, uint64(time.Now().UnixNano()))
	return rand.New(&d.source).Int64N(n)
}

// Failf reports a violation.
func (w *World) Failf(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.failf(format, args...)
}

func (w *World) failf(format string, args ...any) {
	text := fmt.Sprintf("at %v: ", w.Now()) + fmt.Sprintf(format, args...)
	w.failures = append(w.failures, text)
	w.tracef("VIOLATION %s", text)
}

// Logf adds a line to the trace.
func (w *World) Logf(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.tracef(format, args...)
}

// Synchronous makes the standby of each failover have all that was committed.
func (w *World) Synchronous() { w.noStep(fails) }

// SteadyClock makes the server's clock never jump.
func (w *World) SteadyClock() { w.noStep(steps) }

func (w *World) noStep(k kind) {
	for i := range w.plan.world {
		if f := &w.plan.world[i]; f.Kind == k {
			f.Step = 0
		}
	}
}

// Check calls check after each statement, and reports its error.
func (w *World) Check(check func() error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.checks = append(w.checks, check)
}

func (w *World) tracef(format string, args ...any) {
	if w.tracing {
		w.trace = append(w.trace, fmt.Sprintf("%12v  ", w.Now())+fmt.Sprintf(format, args...))
	}
}

// faultLine begins a line of the trace about a fault.
const faultLine = "fault: "

// struck notes a fault.
func (w *World) struck(f Fault) {
	w.happened = append(w.happened, f)
	w.tracef(faultLine+"%v", f)
}

// disrupt carries out the plan's faults of the world.
func (w *World) disrupt() {
	for i, f := range w.plan.world {
		if f.Kind == fails && f.Step > 0 {
			time.AfterFunc(f.At-f.Step-w.Now(), func() { w.copyState(i) })
		}
	}
	for i, f := range w.plan.world {
		time.Sleep(f.At - w.Now())
		if w.work.Err() != nil {
			return
		}
		w.mu.Lock()
		if f.Node >= 0 && w.slotCount > 0 {
			f.Node %= w.slotCount
			f.Who = w.nameOf(f.Node)
		}
		w.struck(f)
		w.strike(i, f)
		w.mu.Unlock()
	}
}

// nameOf returns the name of a process in its present life.
func (w *World) nameOf(slot int) (name string) {
	for _, n := range w.nodes {
		if n.slot == slot {
			name = n.name
		}
	}
	return name
}

func (w *World) copyState(i int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	restore := w.server.Copy()
	var all []func()
	for _, t := range w.tables {
		all = append(all, t.copy())
	}
	w.copies[i] = func() {
		restore()
		for _, f := range all {
			f()
		}
	}
}

// strike does what a fault is. The caller holds mu.
func (w *World) strike(i int, f Fault) {
	until := time.Now().Add(f.For)
	switch f.Kind {
	case hangs:
		w.busyUntil = later(w.busyUntil, until)
	case restarts:
		w.server.Crash()
	case fails:
		w.failOver(i)
	case steps:
		w.judge.excuse(func(fencing.Fence, time.Time) bool { return true })
		w.server.Advance(f.Step)
	}
	if f.Kind == full || f.Kind == restarts || f.Kind == fails {
		w.server.SetDown(true)
		time.AfterFunc(f.For, func() { w.server.SetDown(false) })
	}
	for _, n := range w.nodes {
		if n.dead || f.Node >= 0 && n.slot != f.Node {
			continue
		}
		n.delayed(until)
		switch f.Kind {
		case rests:
			n.rest(until)
		case crashes:
			n.rest(until)
			n.crash()
		case cut, restarts, fails:
			n.cut()
		}
	}
	w.judge.look(event{op: string(f.Kind)})
}

// failOver promotes a standby, which may lack the last grants.
func (w *World) failOver(i int) {
	if promote := w.copies[i]; promote != nil {
		promote()
		w.losses++
	} else {
		w.server.Copy()()
	}
	left := map[fencing.Fence]time.Time{}
	w.server.Grants(func(g memory.Grant) { left[fencing.Fence{Name: g.Name, Token: g.Token}] = g.Expires })
	w.judge.excuse(func(f fencing.Fence, until time.Time) bool {
		after, found := left[f]
		return !found || after.Before(until)
	})
}

// Random returns a number of at least 0 and less than n.
func (w *World) Random(n int) int {
	w.draws.Lock()
	w.draws.n++
	key := w.draws.n
	w.draws.Unlock()
	return int(w.draw(key, int64(n)))
}

// Sleep waits for d, and at most until ctx is done.
func Sleep(ctx context.Context, d time.Duration) { _ = backoff.Sleep(ctx, d) }
