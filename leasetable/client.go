package leasetable

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/schema"
)

const (
	// statementBound is the longest a statement of the protocol may take. They
	// don't wait for locks (a first grant and pruning do for each other, for the
	// time of a statement), so only a server in trouble takes long.
	statementBound = 5 * time.Second

	// outagePatience is how long Acquire keeps trying while the server can't be
	// reached, for instance during a failover.
	outagePatience = 30 * time.Second
)

// Client grants leases and renews them. It is safe for concurrent use. Make one
// for a process and keep it: it owns a few connections and one goroutine.
type Client struct {
	cfg   clientConfig
	sql   statements
	conns *connections
	renew *renewer
	lanes *lanes

	waiting queue
	keeper  *keeper
	ears    *ears
	janitor *janitor
	channel string // on which it is notified, and its name in the queue

	// life ends when Close is through with waiting: it bounds every statement.
	life    context.Context //nolint:containedctx // it is the client's, not a call's
	endLife context.CancelCauseFunc

	// closing is closed when Close begins: whoever waits gives up.
	closing  chan struct{}
	closed   chan struct{} // when it is done
	closeErr error         // set before closed is closed

	mu       sync.Mutex          // guards the three below
	isClosed bool                // no new calls
	draining bool                // no releases either
	leases   map[*Lease]struct{} // those that Close must release

	// calls counts what runs on behalf of callers. Adding to it needs mu and
	// one of the flags unset, or a count that is already held.
	calls sync.WaitGroup
}

// Open returns a client for the database that pool leads to. It takes its own
// connections (WithMaxConns), with the pool's configuration, so that neither
// side can starve the other; the pool itself is not used and not closed.
//
// Open makes one connection and fails with ErrSchema (missing, outdated or newer
// tables), ErrPrivilege, ErrUnavailable, ErrInvalidOption or ErrInvalidSchema.
// Nothing is left behind then. ctx bounds Open alone. Close the client.
func Open(ctx context.Context, pool *pgxpool.Pool, opts ...Option) (*Client, error) {
	cfg, err := newClientConfig(opts)
	if err != nil {
		return nil, err
	}
	if pool == nil {
		return nil, invalidOption("the pool is nil")
	}
	life, endLife := context.WithCancelCause(context.Background())
	conns, err := openConnections(life, pool, cfg)
	if err != nil {
		endLife(err)
		return nil, err
	}
	if err := conns.check(ctx); err != nil {
		endLife(err)
		conns.close(ctx)
		return nil, err
	}
	c := &Client{
		cfg: cfg, sql: newStatements(cfg.schema), conns: conns,
		life: life, endLife: endLife,
		closing: make(chan struct{}), closed: make(chan struct{}),
		leases:  map[*Lease]struct{}{},
		waiting: queue{lines: map[string]*line{}, alone: map[string]struct{}{}},
		channel: newChannel(),
	}
	c.renew, c.lanes, c.keeper, c.ears = newRenewer(c), newLanes(c), newKeeper(c), newEars(c)
	go c.renew.run()
	c.janitor = newJanitor(c)
	return c, nil
}

// Schema returns the name of the schema that holds the client's tables.
func (c *Client) Schema() string { return c.cfg.schema }

// check makes the first connection and compares the schema's version. Later
// connections accept a newer one: in a rolling deployment the holders that run
// must keep their leases when the first new process migrates.
func (c *connections) check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*statementBound)
	defer cancel()
	conn, err := c.pool.Acquire(ctx)
	if err != nil {
		return explain(c.schema, "open", err)
	}
	conn.Release()
	return schema.Check(c.schema, int(c.version.Load()))
}

// Close ends the client: callers that wait get ErrClosed, the Context of every
// lease is done, then the leases are released, and connections and goroutines
// end. Stop the work that leases protect before: others may be granted its locks
// while Close returns.
//
// ctx bounds it. If it ends first, leases that could not be released end by
// their TTL, and Close returns ctx's error; everything local is still stopped.
// Close may be called again: it waits for the first call and returns what that returned.
func (c *Client) Close(ctx context.Context) error {
	c.mu.Lock()
	first := !c.isClosed
	c.isClosed = true
	held := make([]*Lease, 0, len(c.leases))
	for l := range c.leases {
		held = append(held, l)
	}
	c.mu.Unlock()
	if first {
		c.closeErr = c.shutDown(ctx, held)
		close(c.closed)
	}
	select {
	case <-c.closed:
		return c.closeErr
	case <-ctx.Done():
		return fmt.Errorf("leasetable: close: still under way: %w", context.Cause(ctx))
	}
}

// shutDown is Close, once. When ctx ends, so does the client's life, and with it
// every statement under way: nothing here waits longer.
func (c *Client) shutDown(ctx context.Context, held []*Lease) error {
	close(c.closing)
	defer context.AfterFunc(ctx, func() { c.endLife(ErrClosed) })()
	err := c.releaseAll(ctx, held)
	c.janitor.stop()
	c.renew.stop()
	c.mu.Lock()
	c.draining = true
	c.mu.Unlock()
	c.calls.Wait()
	c.lanes.stop()
	c.keeper.stop(ctx)
	c.ears.stop()
	c.endLife(ErrClosed)
	c.conns.close(ctx)
	return err
}

// releaseAll ends all leases and then releases them, as many at a time as the lanes can
// take up. When the server can't be reached for one it leaves the others to their TTL.
func (c *Client) releaseAll(ctx context.Context, held []*Lease) error {
	held = slices.DeleteFunc(held, func(l *Lease) bool { // all of them before the first is free for others
		return !l.end(errReleasedByClose) && errors.Is(l.Err(), ErrLost) // whose holder has been told
	})
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	errs := make([]error, len(held))
	slots := make(chan struct{}, c.lanes.limit*c.lanes.batch)
	var all sync.WaitGroup
	for i, l := range held {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			if errs[i] = context.Cause(ctx); errs[i] == nil {
				errs[i] = l.awaitRelease(ctx, ctx.Done())
			}
			if errors.Is(errs[i], ErrUnavailable) {
				giveUp(errs[i])
			}
		})
	}
	all.Wait()
	return firstOf(errs)
}

// firstOf returns the first error and how many there were: of a thousand leases that
// a dead server keeps, one message will do.
func firstOf(errs []error) error {
	var first error
	n := 0
	for _, err := range errs {
		if err == nil {
			continue
		}
		if n++; first == nil {
			first = err
		}
	}
	if n > 1 {
		return fmt.Errorf("%w (and %d more leases)", first, n-1)
	}
	return first
}

// enter counts a call in, unless the client is closed. The caller must leave.
func (c *Client) enter() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isClosed {
		return ErrClosed
	}
	c.calls.Add(1)
	return nil
}

// enterToRelease is enter for what Close itself waits for: leases that end.
func (c *Client) enterToRelease() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.draining {
		return ErrClosed
	}
	c.calls.Add(1)
	return nil
}

func (c *Client) leave() { c.calls.Done() }

// background runs fn on its own, bounded by the client's life and by bound. The
// caller must be counted in. Close waits for it.
func (c *Client) background(bound time.Duration, fn func(ctx context.Context)) {
	c.calls.Go(func() {
		ctx, cancel := context.WithTimeout(c.life, bound)
		defer cancel()
		fn(ctx)
	})
}
