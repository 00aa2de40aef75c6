package pglock_test

import (
	"context"
	"io"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/inspect"
	"github.com/pglock/pglock-go/pglock/internal/backend"
	"github.com/pglock/pglock-go/pglock/internal/memory"
)

// fake has the locks of one test in memory: see pglocktest.Fake. Statements take no time, and time
// passes when all goroutines wait. The driver suite in internal/backend shows that the locks behave
// as those of a server.
type fake struct {
	*memory.Server
	t       *testing.T
	network memory.Network                    // of the clients; nil: one without faults
	wrap    func(backend.Store) backend.Store // changes the store of each client, if it is not nil
}

// inBubble runs a test on locks in memory, in a bubble of testing/synctest, which also shows that
// the test leaves no goroutine behind.
func inBubble(t *testing.T, test func(t *testing.T, f fake)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { test(t, newFake(t)) })
}

func newFake(t *testing.T) fake {
	t.Helper()
	return fake{Server: memory.NewServer(), t: t}
}

// through returns the fake with another store for each client.
func (f fake) through(wrap func(backend.Store) backend.Store) fake {
	f.wrap = wrap
	return f
}

// open returns a client that is closed at the end of the test.
func (f fake) open(opts ...pglock.Option) *pglock.Client {
	f.t.Helper()
	c := f.openUnclosed(opts...)
	f.t.Cleanup(func() {
		if err := c.Close(context.Background()); err != nil {
			f.t.Errorf("Close: %v", err)
		}
	})
	return c
}

// openUnclosed returns a client for a test that closes it.
func (f fake) openUnclosed(opts ...pglock.Option) *pglock.Client {
	f.t.Helper()
	store := func(life context.Context) (s backend.Store) {
		if s = f.Connect(life); f.network != nil {
			s = f.ConnectBy(life, f.network)
		}
		if f.wrap != nil {
			s = f.wrap(s)
		}
		return s
	}
	opts = append([]pglock.Option{pglock.WithSchema(schema.Default), pglock.WithLogger(nil)}, opts...)
	c, err := backend.Inside.Open(f.t.Context(), store, opts)
	must(f.t, err)
	return c.(*pglock.Client)
}

// begin returns a transaction for guards, which the end of the test rolls back.
func (f fake) begin() pgx.Tx {
	f.t.Helper()
	tx, err := f.Connect(context.Background()).Begin(f.t.Context())
	must(f.t, err)
	f.t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	return tx
}

// row returns the state of a lock.
func (f fake) row(name string) inspect.Lock {
	f.t.Helper()
	row, _, err := f.Connect(context.Background()).Get(context.Background(), name)
	must(f.t, err)
	return row.Lock
}

// left is how long the server keeps the only grant of a name.
func (f fake) left(name string) time.Duration {
	f.t.Helper()
	return f.row(name).Remaining
}

// expiry is the time at which the server lets the only grant of a name expire.
func (f fake) expiry(name string) time.Time {
	f.t.Helper()
	return time.Now().Add(f.left(name))
}

// empty fails the test if there are grants of the names, or waiters for them.
func (f fake) empty(names ...string) {
	f.t.Helper()
	for _, name := range names {
		if row := f.row(name); row.Held() || len(row.Waiters) > 0 {
			f.t.Errorf("%q is held or waited for: %+v", name, row)
		}
	}
}

// waits acquires the lock in the background, and returns when the call waits.
func (f fake) waits(l pglock.Lock, opts ...pglock.LeaseOption) <-chan *pglock.Lease {
	f.t.Helper()
	got := async(f.t, l, opts...)
	synctest.Wait()
	f.still(got)
	return got
}

// leaves is waits for a call that does not get the lock, and returns why.
func (f fake) leaves(ctx context.Context, l pglock.Lock, opts ...pglock.LeaseOption) <-chan error {
	f.t.Helper()
	ended := leaving(ctx, l, opts...)
	synctest.Wait()
	return ended
}

// still fails the test unless the call waits.
func (f fake) still(got <-chan *pglock.Lease) {
	f.t.Helper()
	synctest.Wait()
	select {
	case l := <-got:
		if l == nil {
			f.t.FailNow()
		}
		f.t.Fatalf("the waiter was granted %q", l.Names())
	default:
	}
}

// steal ends all grants of a name, and grants it to another client.
func (f fake) steal(name string) *pglock.Lease {
	f.t.Helper()
	f.Expire(name, 0)
	return try(f.t, f.open(pglock.WithHolder("thief")), name, pglock.WithBarging(), pglock.WithTTL(time.Hour))
}

// ghost puts a client into the queue for name that is not heard of any more, until rise is called.
func (f fake) ghost(name string) (rise func()) {
	f.t.Helper()
	n, far := f.proxied()
	ctx, cancel := context.WithCancel(context.Background())
	left := f.leaves(ctx, far.open().Lock(name))
	n.Cut()
	rise = sync.OnceFunc(func() {
		cancel()
		n.Heal()
		n.Sever()
		f.t.Log("given up:", <-left)
	})
	f.t.Cleanup(rise)
	return rise
}

// proxied returns the fake as seen through a network that makes faults.
func (f fake) proxied() (*network, fake) {
	n := &network{healed: make(chan struct{}), severed: make(chan struct{})}
	f.network = n
	return n, f
}

// network makes the faults of a faultproxy.Proxy. It counts the statements that reach the server.
type network struct {
	mu              sync.Mutex  // guards the fields below
	refuses         bool        // no statement is sent
	cuts            bool        // statements don't arrive
	holds           bool        // answers wait for Heal
	drops           func() bool // answers wait for Sever, which loses them
	delay           time.Duration
	statements      int
	healed, severed chan struct{} // closed by the next Heal and Sever
}

func (n *network) set(change func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	change()
}

func (n *network) Refuse(on bool)        { n.set(func() { n.refuses = on }) }
func (n *network) Cut()                  { n.set(func() { n.cuts = true }) }
func (n *network) HoldReplies()          { n.set(func() { n.holds = true }) }
func (n *network) DropReplies()          { n.DropRepliesIf(func() bool { return true }) }
func (n *network) Delay(d time.Duration) { n.set(func() { n.delay = d }) } // of an answer

// DropRepliesIf loses the answers that arrive while a condition holds.
func (n *network) DropRepliesIf(condition func() bool) { n.set(func() { n.drops = condition }) }

// Heal ends the faults, except Refuse.
func (n *network) Heal() {
	n.set(func() {
		n.cuts, n.holds, n.drops = false, false, nil
		close(n.healed)
		n.healed = make(chan struct{})
	})
}

// Sever ends the statements that have no answer.
func (n *network) Sever() {
	n.set(func() {
		close(n.severed)
		n.severed = make(chan struct{})
	})
}

// count returns the number of statements that have reached the server.
func (n *network) count() (statements int) {
	n.set(func() { statements = n.statements })
	return statements
}

// refusedError is that of a statement which was not sent.
type refusedError struct{}

func (refusedError) Error() string     { return "connection refused" }
func (refusedError) Unwrap() error     { return pglock.ErrUnavailable }
func (refusedError) SafeToRetry() bool { return true } // what pgconn.SafeToRetry asks for

// Carry carries a statement, unless a fault keeps it or its answer back.
func (n *network) Carry(ctx, life context.Context, _ memory.Message, apply func(time.Time) (any, error)) (any, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(life, cancel)()
	if err := n.send(ctx); err != nil {
		return nil, err
	}
	answer, err := apply(time.Now())
	if err != nil {
		return answer, err
	}
	return answer, n.receive(ctx)
}

func (n *network) send(ctx context.Context) (err error) {
	var lost <-chan struct{}
	n.set(func() {
		switch {
		case n.refuses:
			err = refusedError{}
		case n.cuts:
			lost = n.severed
		default:
			n.statements++
		}
	})
	if lost != nil {
		return outcome[struct{}](ctx, lost, nil)
	}
	return err
}

func (n *network) receive(ctx context.Context) error {
	var lost, healed <-chan struct{}
	var delay time.Duration
	n.set(func() {
		if delay = n.delay; n.holds || n.cuts || n.drops != nil && n.drops() {
			lost = n.severed
		}
		if n.holds {
			healed = n.healed
		}
	})
	switch {
	case lost != nil:
		return outcome(ctx, lost, healed)
	case delay > 0:
		return outcome(ctx, nil, time.After(delay))
	}
	return nil
}

// outcome waits until the connection ends, or the answer arrives.
func outcome[T any](ctx context.Context, lost <-chan struct{}, arrives <-chan T) error {
	select { // if more than one is ready, any of them is right
	case <-arrives:
		return nil
	case <-lost:
		return io.ErrUnexpectedEOF
	case <-ctx.Done():
		return ctx.Err()
	}
}

// bubbles runs a part of a test in a bubble of its own.
func bubbles(t *testing.T, name string, test func(t *testing.T, f fake)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		t.Helper()
		inBubble(t, test)
	})
}
