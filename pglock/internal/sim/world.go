// Package sim runs the processes of a program in one bubble of testing/synctest, where time costs
// nothing. Each has a real client, and one table in memory is the server. A plan that a seed draws
// decides what happens to each message between them, and to the processes and the server. A judge
// looks at the table, and at the leases that the clients trust, after each statement.
package sim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/backoff"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/internal/backend"
	"github.com/pglock/pglock-go/pglock/internal/memory"
)

// World is a run.
type World struct {
	server *memory.Server
	plan   plan
	began  time.Time
	work   context.Context //nolint:containedctx // of all processes: ends when the run does
	stop   context.CancelFunc
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
	lossy     bool // a failover has lost what was committed

	draws struct {
		sync.Mutex
		at time.Time
		n  uint64
	}
}

// Node is one life of a process: it ends when the process crashes.
type Node struct {
	*pglock.Client
	world *World
	store *store
	id    int
	slot  int
	name  string

	mu         sync.Mutex
	counts     map[Fault]int   // of messages, by what they are
	connection context.Context //nolint:containedctx // ends when the connections are cut
	end        context.CancelFunc
	restUntil  time.Time
	struck     time.Time // by the last fault that delays it
	refused    time.Time // a statement, by the last such fault
	dead       bool      // it has crashed or left
	leaving    bool      // its client closes
	left       bool      // its client is closed
	crash      func()
}

func newWorld(p plan) *World {
	w := &World{server: memory.NewServer(), plan: p, began: time.Now(), copies: map[int]func(){}}
	w.judge = newJudge(w)
	w.work, w.stop = context.WithCancel(context.Background())
	return w
}

// Now returns the time since the start.
func (w *World) Now() time.Duration { return time.Since(w.began) }

// random is the source of the clients' random times: it depends on the time, and not on what was
// drawn before, so that a small difference has small effects.
func (w *World) random(n int64) int64 {
	d := &w.draws
	d.Lock()
	defer d.Unlock()
	now := time.Now()
	if now != d.at {
		d.at, d.n = now, 0
	}
	d.n++
	return rand.New(rand.NewPCG(w.plan.seed^d.n<<48, uint64(now.UnixNano()))).Int64N(n)
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
func (w *World) Synchronous() {
	for i := range w.plan.world {
		if f := &w.plan.world[i]; f.Kind == fails {
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

// Go starts processes, which do the work each with a client of its own. One that crashes begins
// again: its context ends, and its client reaches nothing any more. The context of all ends with
// the run.
func (w *World) Go(name string, processes int, work func(ctx context.Context, p *Node), opts ...pglock.Option) {
	for i := range processes {
		w.mu.Lock()
		slot := w.slotCount
		w.slotCount++
		w.mu.Unlock()
		w.slots.Go(func() {
			for w.work.Err() == nil {
				ctx, crash := context.WithCancelCause(w.work)
				p := w.open(ctx, crash, slot, fmt.Sprintf("%s %d", name, i+1), opts)
				if p != nil {
					p.run(ctx, work)
					p.leave()
				}
				crashed := errors.Is(context.Cause(ctx), errCrash)
				crash(nil)
				if !crashed {
					return
				}
				if p != nil {
					time.Sleep(p.restsFor())
				}
			}
		})
	}
}

var errCrash = errors.New("the process has crashed")

// run does the work of a process.
func (n *Node) run(ctx context.Context, work func(ctx context.Context, p *Node)) {
	defer func() {
		if r := recover(); r != nil {
			n.world.Failf("panic: %s: %v\n%s", n.name, r, debug.Stack())
		}
	}()
	work(ctx, n)
	for _, l := range backend.Inside.Leases(n.Client).([]*pglock.Lease) {
		if ctx.Err() == nil && l.Err() == nil {
			n.world.Failf("release: %s ends with its lease of %q, token %d", n.name, l.Name(), l.Token())
		}
	}
}

// open starts a process, and returns nil if the run ends before it has a client.
func (w *World) open(ctx context.Context, crash context.CancelCauseFunc, slot int, name string, opts []pglock.Option) *Node {
	n := &Node{world: w, slot: slot, name: name, counts: map[Fault]int{}, crash: func() { crash(errCrash) }}
	n.connection, n.end = context.WithCancel(context.Background())
	w.mu.Lock()
	n.id = len(w.nodes)
	w.nodes = append(w.nodes, n)
	lives := 1
	for _, other := range w.nodes {
		if other.slot == slot {
			lives++
		}
	}
	if lives > 2 {
		n.name = fmt.Sprintf("%s (life %d)", name, lives-1)
	}
	w.mu.Unlock()
	opts = append([]pglock.Option{pglock.WithLogger(nil), pglock.WithHolder(n.name), pglock.WithSchema(schema.Default), pglock.WithObserver(w.judge.hooks(n))}, opts...)
	for {
		client, err := backend.Inside.Open(ctx, func(life context.Context) backend.Store {
			n.store = &store{Store: w.server.Connect(context.Background()), node: n, life: life}
			return n.store
		}, opts)
		if err == nil {
			w.mu.Lock()
			defer w.mu.Unlock()
			n.Client = client.(*pglock.Client)
			return n
		}
		if ctx.Err() != nil {
			return nil
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// leave closes the client, of a process that has crashed without a word to the server.
func (n *Node) leave() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	n.world.mu.Lock()
	n.leaving = true
	n.world.mu.Unlock()
	err := n.Close(ctx)
	n.world.mu.Lock()
	defer n.world.mu.Unlock()
	n.dead, n.left = true, true
	n.world.judge.closed(n, err)
}

// Begin begins a transaction, as pglocktest.Locks.Begin does.
func (n *Node) Begin(ctx context.Context) (pgx.Tx, error) { return n.store.Begin(ctx) }

func (n *Node) wire() context.Context {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.connection
}

// cut ends the connections.
func (n *Node) cut(last bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.end()
	if !last {
		n.connection, n.end = context.WithCancel(context.Background())
	}
}

// message draws the fate of the next message.
func (n *Node) message(op, about string) message {
	w := n.world
	w.mu.Lock()
	defer w.mu.Unlock()
	f := Fault{Node: n.id, Op: op, About: about}
	n.counts[f]++
	f.Nth = n.counts[f]
	m := w.plan.draw(f, w.Now())
	if m.fault != "" {
		f.Kind, f.Who = m.fault, n.name
		n.suffers(op, m.fault)
		w.struck(f)
	}
	return m
}

// suffers notes the fault of a message. One that comes twice, or a refusal alone, delays nothing.
func (n *Node) suffers(op string, k kind) {
	now := time.Now()
	switch {
	case k == twice:
	case k == refused && op != "upgrade" && now.Sub(n.refused) > 5*time.Second: // an upgrade ends the reader then
		n.refused = now
	default:
		n.struck = now
	}
}

// blockedFor returns how long no message moves.
func (n *Node) blockedFor() time.Duration {
	w := n.world
	w.mu.Lock()
	defer w.mu.Unlock()
	until := n.restUntil
	if w.busyUntil.After(until) {
		until = w.busyUntil
	}
	return time.Until(until)
}

// restsFor returns how long the process rests.
func (n *Node) restsFor() time.Duration {
	n.world.mu.Lock()
	defer n.world.mu.Unlock()
	return time.Until(n.restUntil)
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
	now := time.Now()
	until := now.Add(f.For)
	all := func(act func(n *Node)) {
		for _, n := range w.nodes {
			if !n.dead && (f.Node < 0 || n.slot == f.Node) {
				n.struck = until
				act(n)
			}
		}
	}
	switch f.Kind {
	case rests:
		all(func(n *Node) { n.restUntil = until })
	case cut:
		all(func(n *Node) { n.cut(false) })
	case crashes:
		all(func(n *Node) {
			n.restUntil, n.dead = until, true
			n.cut(true)
			n.crash()
		})
	case hangs:
		w.busyUntil = until
		all(func(*Node) {})
	case full, restarts, fails:
		switch f.Kind {
		case restarts:
			w.server.Crash()
		case fails:
			w.failOver(i)
		}
		w.server.SetDown(true)
		if f.Kind != full {
			all(func(n *Node) { n.cut(false) })
		}
		all(func(*Node) {})
		time.AfterFunc(f.For, func() { w.server.SetDown(false) })
	case steps:
		w.judge.excuse(func(string, fencing.Token, time.Time) bool { return true })
		w.judge.rewound = true
		w.server.Advance(f.Step)
		all(func(*Node) {})
	}
	w.judge.look(nil, string(f.Kind), "")
}

// failOver promotes a standby, which may lack the last grants.
func (w *World) failOver(i int) {
	if promote := w.copies[i]; promote != nil {
		promote()
		w.lossy = true
	} else {
		w.server.Copy()()
	}
	w.judge.rewound = true
	left := map[grantKey]time.Time{}
	w.server.Grants(func(g memory.Grant) { left[grantKey{g.Name, g.Token}] = g.Expires })
	w.judge.excuse(func(name string, token fencing.Token, until time.Time) bool {
		after, found := left[grantKey{name, token}]
		return !found || after.Before(until)
	})
}

type grantKey struct {
	name  string
	token fencing.Token
}

// Random returns a number of at least 0 and less than n.
func (w *World) Random(n int) int { return int(w.random(int64(n))) }

// Name is the name of the process and of this life of it.
func (n *Node) Name() string { return n.name }

// Sleep waits for d, and at most until ctx is done.
func Sleep(ctx context.Context, d time.Duration) { _ = backoff.Sleep(ctx, d) }
