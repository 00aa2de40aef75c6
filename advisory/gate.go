package advisory

import (
	"context"
	"sync"

	"github.com/pglock/pglock-go/internal/errs"
)

// gates admit the goroutines of this process to the server, a few at a time for each key of a
// database. The others wait in the process, where a waiter costs no connection. Gates grant
// nothing: only the server does.
type gates struct {
	mu   sync.Mutex
	open map[gateKey]*gate // guarded by mu; only gates in use
}

type gateKey struct {
	db  any // a pool or connection, compared by identity
	key Key
}

type gate struct {
	slots chan struct{} // Go admits blocked senders first come, first served
	users int           // guarded by gates.mu
}

// enter waits until fewer than width goroutines are behind the gate, or until ctx is done. The
// caller must call leave.
func (g *gates) enter(ctx context.Context, at gateKey, width int) (leave func(), err error) {
	g.mu.Lock()
	if g.open == nil {
		g.open = map[gateKey]*gate{}
	}
	own := g.open[at]
	if own == nil {
		own = &gate{slots: make(chan struct{}, width)}
		g.open[at] = own
	}
	own.users++
	g.mu.Unlock()

	drop := func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		if own.users--; own.users == 0 {
			delete(g.open, at)
		}
	}
	select { // if both are ready, a caller that enters meets its context at the next step
	case own.slots <- struct{}{}:
		return func() { <-own.slots; drop() }, nil
	case <-ctx.Done():
		drop()
		return nil, errs.ContextErr(ctx)
	}
}

// enter is gates.enter for the first of the call's keys, with its timeout and errors.
func (c *call) enter(ctx context.Context, g *gates, db any, width int) (leave func(), err error) {
	bounded := ctx
	if end := c.timeoutAt(); !end.IsZero() {
		var cancel context.CancelFunc
		bounded, cancel = context.WithDeadline(ctx, end)
		defer cancel()
	}
	leave, err = g.enter(bounded, gateKey{db, c.keys[0]}, width)
	switch {
	case err == nil:
		return leave, nil
	case ctx.Err() != nil:
		return nil, c.notAcquired(errs.ContextErr(ctx))
	}
	return nil, c.notAcquired(ErrTimeout)
}
