package sim

import (
	"context"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/internal/backend"
	"github.com/pglock/pglock-go/pglock/internal/memory"
)

// Node is one life of a process: it ends when the process crashes.
type Node struct {
	*pglock.Client
	world *World
	store *memory.Store
	id    int
	slot  int
	name  string
	alive *life

	// Guarded by the world's mu:
	calls     map[call]*calls
	wire      chan struct{} // closed when the connections are cut
	sessions  []backend.Listener
	restUntil time.Time            // until then no message moves
	struck    time.Time            // when the last fault came that delays it, or until when one lasts
	refused   map[string]time.Time // statements, by the last such fault
	hindered  map[string]time.Time // what statements are about, by the end of the last fault that delays one
	crashed   bool
	dead      bool                 // it has crashed or left
	leaving   bool                 // its client closes
	left      bool                 // its client is closed
	callers   []*caller            // that wait, and may leave
	flying    int                  // statements without an answer yet
	attempted map[string]time.Time // when the last attempt for a name was sent
}

// allStatements is what a fault of a process or the server delays.
const allStatements = "all statements"

// life is a context that tells its children of its end in the order in which they came, which is a
// part of what a seed repeats. Package context does so in the order of a map.
type life struct {
	context.Context //nolint:containedctx // without an end
	done            chan struct{}

	mu       sync.Mutex // guards the fields below
	err      error
	children []*func()
}

func newLife() *life { return &life{Context: context.Background(), done: make(chan struct{})} }

func (l *life) Done() <-chan struct{} { return l.done }

func (l *life) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// AfterFunc is what package context calls for a child.
func (l *life) AfterFunc(f func()) (stop func() bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		go f()
		return func() bool { return false }
	}
	child := &f
	l.children = append(l.children, child)
	return func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		at := slices.Index(l.children, child)
		if at >= 0 {
			l.children = slices.Delete(l.children, at, at+1)
		}
		return at >= 0
	}
}

func (l *life) end() {
	l.mu.Lock()
	children, first := l.children, l.err == nil
	l.children, l.err = nil, context.Canceled
	l.mu.Unlock()
	if first {
		close(l.done)
	}
	for _, child := range children {
		(*child)()
	}
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
			for again := true; again && w.work.Err() == nil; {
				n := w.newNode(slot, fmt.Sprintf("%s %d", name, i+1))
				stop := w.work.AfterFunc(n.alive.end)
				if n.open(opts) {
					n.run(work)
					n.leave()
				}
				stop()
				w.mu.Lock()
				again = n.crashed
				rests := time.Until(n.restUntil)
				w.mu.Unlock()
				if again {
					time.Sleep(rests)
				}
			}
		})
	}
}

func (w *World) newNode(slot int, name string) *Node {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := &Node{world: w, slot: slot, name: name, id: len(w.nodes), calls: map[call]*calls{}, refused: map[string]time.Time{}, hindered: map[string]time.Time{}, attempted: map[string]time.Time{}, wire: make(chan struct{}), alive: newLife()}
	lives := 1
	for _, other := range w.nodes {
		if other.slot == slot {
			lives++
		}
	}
	if lives > 1 {
		n.name = fmt.Sprintf("%s (life %d)", name, lives)
	}
	w.nodes = append(w.nodes, n)
	return n
}

// open opens the client, and reports false if the life of the process ends before.
func (n *Node) open(opts []pglock.Option) bool {
	w := n.world
	opts = append([]pglock.Option{pglock.WithLogger(nil), pglock.WithHolder(n.name), pglock.WithSchema(schema.Default), pglock.WithObserver(w.judge.hooks(n))}, opts...)
	for {
		client, err := backend.Inside.Open(n.alive, func(life context.Context) backend.Store {
			n.store = w.server.ConnectBy(life, n)
			return store{n.store, n}
		}, opts)
		if err == nil {
			w.mu.Lock()
			defer w.mu.Unlock()
			n.Client = client.(*pglock.Client)
			return true
		}
		if n.alive.Err() != nil {
			return false
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// run does the work of a process.
func (n *Node) run(work func(ctx context.Context, p *Node)) {
	defer func() {
		if r := recover(); r != nil {
			n.world.Failf("panic: %s: %v\n%s", n.name, r, debug.Stack())
		}
	}()
	work(n.alive, n)
	for _, l := range backend.Inside.Leases(n.Client).([]*pglock.Lease) {
		if n.alive.Err() == nil && l.Err() == nil {
			n.world.Failf("release: %s ends with its lease of %q, token %d", n.name, l.Name(), l.Token())
		}
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
	n.world.tracef("%s: closed: %v", n.name, err)
}

// cut ends the connections. After a crash, there are no others. The caller holds the world's mu.
func (n *Node) cut() {
	close(n.wire)
	for _, l := range n.sessions {
		_ = l.Close(context.Background()) // it can't fail
	}
	if n.sessions = nil; !n.crashed {
		n.wire = make(chan struct{})
	}
}

// crash ends the process. The caller holds the world's mu.
func (n *Node) crash() {
	n.crashed, n.dead = true, true
	n.cut()
	n.alive.end()
}

// delayed notes a fault that delays all statements until then. An earlier one may last for longer.
// The caller holds the world's mu, as that of rest.
func (n *Node) delayed(until time.Time) {
	n.struck, n.hindered[allStatements] = later(n.struck, until), later(n.hindered[allStatements], until)
}

// rest lets no message move until then, or for longer if a longer rest has begun.
func (n *Node) rest(until time.Time) {
	n.restUntil = later(n.restUntil, until)
	n.delayed(until)
}

// blockedFor returns how long no message moves.
func (n *Node) blockedFor() time.Duration {
	w := n.world
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Until(later(n.restUntil, w.busyUntil))
}

// later returns the later one of two times.
func later(a, b time.Time) time.Time { return slices.MaxFunc([]time.Time{a, b}, time.Time.Compare) }

// Begin begins a transaction, as pglocktest.Locks.Begin does.
func (n *Node) Begin(ctx context.Context) (pgx.Tx, error) { return n.store.Begin(ctx) }

// Name is the name of the process and of this life of it.
func (n *Node) Name() string { return n.name }
