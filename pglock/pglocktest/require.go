package pglocktest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/internal/backend"
	"github.com/pglock/pglock-go/pglock/observe"
)

// RequireHeld ends the test unless these are the holders of the lock, in any order. Without any, somebody
// has to hold it.
func (k *Locks) RequireHeld(name string, holders ...string) {
	k.tb.Helper()
	got := k.holdersOf(name)
	slices.Sort(got)
	want := slices.Sorted(slices.Values(holders))
	if len(got) == 0 || len(want) > 0 && !slices.Equal(got, want) {
		k.tb.Fatalf("pglocktest: %q is held by %q, want %q", name, got, want)
	}
}

// RequireFree ends the test if somebody holds the lock.
func (k *Locks) RequireFree(name string) {
	k.tb.Helper()
	if got := k.holdersOf(name); len(got) > 0 {
		k.tb.Fatalf("pglocktest: %q is held by %q", name, got)
	}
}

func (k *Locks) holdersOf(name string) (holders []string) {
	k.tb.Helper()
	l, err := k.Get(k.tb.Context(), name)
	switch {
	case errors.Is(err, pglock.ErrNotFound):
	case err != nil:
		k.tb.Fatalf("pglocktest: %v", err)
	case l.Held() && l.Holder != "":
		holders = append(holders, l.Holder)
	default:
		for _, g := range l.Grants {
			holders = append(holders, g.Holder)
		}
	}
	return holders
}

// RequireGuarded ends the test if a transaction writes to one of the tables while fn runs, commits, and has
// not called Lease.Guard, Lease.Bind, fencing.Batch, or their functions in SQL. It needs New, and rights to
// create a trigger on the tables. The writes of all sessions count, so no other test may write to these tables at
// the same time. Transactions of DoTx have no lease, so they count as not guarded.
func (k *Locks) RequireGuarded(fn func(), tables ...string) {
	k.tb.Helper()
	d, ok := k.place.(*database)
	if !ok {
		k.tb.Fatalf("%v", backend.ErrNoDatabase)
	}
	var unguarded []string
	err := d.watch(k.tb.Context(), tables)
	if err == nil {
		fn()
		unguarded, err = d.unwatch(tables)
	}
	switch {
	case err != nil:
		k.tb.Fatalf("pglocktest: %v", err)
	case len(unguarded) > 0:
		k.tb.Fatalf("pglocktest: written without a guard: %s", strings.Join(unguarded, ", "))
	}
}

// RequireContextEnds ends the test unless ctx is done within a second.
func RequireContextEnds(tb testing.TB, ctx context.Context) { //nolint:revive // as in other packages of assertions
	tb.Helper()
	select {
	case <-ctx.Done():
	case <-time.After(time.Second):
		tb.Fatal("pglocktest: the context did not end within a second")
	}
}

// recorder has the events of clients in their order.
type recorder struct {
	mu     sync.Mutex
	events []string
}

// Events returns what has happened so far, a line for each event: "waits NAME", "granted NAME" and the other outcomes of an
// acquire, "released NAME", "lost NAME: REASON", and of packages on top "KIND NAME: OUTCOME".
func (r *recorder) Events() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.events)
}

func (r *recorder) add(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, fmt.Sprintf(format, args...))
}

func (r *recorder) hooks() observe.Hooks {
	return observe.Hooks{
		Wait:    func(_ context.Context, e observe.WaitEvent) { r.add("waits %s", e.Name) },
		Acquire: func(_ context.Context, e observe.AcquireEvent) { r.add("%s %s", e.Outcome, e.Name) },
		Release: func(_ context.Context, e observe.ReleaseEvent) { r.add("released %s", e.Name) },
		Loss:    func(_ context.Context, e observe.LossEvent) { r.add("lost %s: %s", e.Name, e.Reason) },
		Result: func(_ context.Context, e observe.ResultEvent) {
			if e.Outcome != "" && e.Kind != observe.KindListener {
				r.add("%s %s: %s", e.Kind, e.Name, e.Outcome)
			}
		},
	}
}

// calls has the leases of a client, and its calls that wait.
type calls struct {
	mu      sync.Mutex
	held    map[fencing.Fence]struct{}
	waiting map[string]int
}

func newCalls() *calls { return &calls{held: map[fencing.Fence]struct{}{}, waiting: map[string]int{}} }

func (c *calls) hooks() observe.Hooks {
	change := func(change func()) {
		c.mu.Lock()
		defer c.mu.Unlock()
		change()
	}
	end := func(name string, token fencing.Token) {
		change(func() { delete(c.held, fencing.Fence{Name: name, Token: token}) })
	}
	return observe.Hooks{
		Wait: func(_ context.Context, e observe.WaitEvent) { change(func() { c.waiting[e.Name]++ }) },
		Acquire: func(_ context.Context, e observe.AcquireEvent) {
			change(func() {
				if e.Queued {
					c.waiting[e.Name]--
				}
				if e.Err == nil {
					c.held[fencing.Fence{Name: e.Name, Token: e.Token}] = struct{}{}
				}
			})
		},
		Release: func(_ context.Context, e observe.ReleaseEvent) { end(e.Name, e.Token) },
		Loss:    func(_ context.Context, e observe.LossEvent) { end(e.Name, e.Token) },
	}
}

// leaks says what was not ended.
func (c *calls) leaks() (leaks []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for f := range c.held {
		leaks = append(leaks, fmt.Sprintf("the lease of %q with token %d is not released", f.Name, f.Token))
	}
	for name, n := range c.waiting {
		if n > 0 {
			leaks = append(leaks, fmt.Sprintf("%d calls wait for %q", n, name))
		}
	}
	slices.Sort(leaks)
	return leaks
}
