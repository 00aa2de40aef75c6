package pglock

import (
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/timing"
	"github.com/pglock/pglock-go/pglock/internal/backend"
	"github.com/pglock/pglock-go/pglock/internal/waitlist"
)

// Client grants and renews leases, and is safe for concurrent use. Open one client per process and
// keep it: its few connections (see WithMaxConns) and goroutines suffice for any number of leases
// and waiters.
type Client struct {
	cfg      clientConfig
	store    backend.Store
	renew    *renewer
	dispatch *dispatch

	waiters *waitlist.Queues
	pruner  *pruner
	events  *events
	channel string // notification channel, and client key in lock_waiters

	registry registry // leases that Close releases
	signals  signals  // requests to holders that were notified
	watches  watches  // names that Watch watches

	newNames      atomic.Bool   // the last lock with one holder had no row: the next one likely has none
	deadlockCheck chan struct{} // a semaphore of one
	lookFailed    sync.Once

	lifecycle
}

// Open returns a client for the database of pool. The client opens its own connections (see
// WithMaxConns), so that neither side can starve the other. It takes the server, user,
// BeforeConnect, AfterConnect, lifetimes and query tracer from the pool, and neither uses nor
// closes it. Other hooks of the pool, such as PrepareConn, do not run for these connections, so set
// a role in AfterConnect or in the connection string. A dial may take the connect_timeout of the connection string (5 s without one) for
// each host, and a hook 10 s, after which its context ends and it must return. A panic of a hook or
// of the tracer ends the process, as in the pool.
//
// Open makes one connection. It fails with ErrSchema (missing, outdated or newer tables),
// ErrPrivilege, ErrUnavailable or ErrInvalidOption, and leaves nothing behind. ctx bounds Open
// only. The caller must call Close.
func Open(ctx context.Context, pool *pgxpool.Pool, opts ...Option) (*Client, error) {
	cfg, err := newClientConfig(opts)
	if err != nil {
		return nil, err
	}
	if pool == nil {
		return nil, invalidOption("open: the pool is nil: pass a *pgxpool.Pool")
	}
	return openOn(ctx, tables{pool: pool}.connect(pool.Config(), cfg), cfg)
}

func init() { backend.Inside = inside{} } //nolint:gochecknoinits // package pglock can't be imported there

// inside is backend.Inside, which documents the methods.
type inside struct{}

func (inside) Open(ctx context.Context, store func(life context.Context) backend.Store, options any) (any, error) {
	cfg, err := newClientConfig(options.([]Option))
	if err != nil {
		return nil, err
	}
	return openOn(ctx, store, cfg)
}

func (inside) Store(client any) backend.Store { return client.(*Client).store }

func (inside) Leases(client any) any { return client.(*Client).registry.all() }

func (inside) InTx(ctx context.Context, client any, name string, fn func(ctx context.Context, tx pgx.Tx) error) error {
	c := client.(*Client)
	return c.runTx(ctx, name, func() error { return c.store.InTx(ctx, c.Key(name), fn) })
}

func (inside) Renew(ctx context.Context, lease any) error {
	l := lease.(*Lease)
	return l.renewNow(ctx, l.cfg.ttl)
}

// openOn returns a client on the store that it makes.
func openOn(ctx context.Context, store func(life context.Context) backend.Store, cfg clientConfig) (*Client, error) {
	life, endLife := context.WithCancelCause(context.Background())
	s := store(life)
	if err := s.Check(ctx); err != nil {
		endLife(err)
		s.Close(ctx)
		if errors.Is(err, ErrUnavailable) && errors.Is(ctx.Err(), context.Canceled) {
			err = errs.Errorf("pglock: open: %w", endOf(ctx))
		}
		return nil, err
	}
	c := &Client{
		cfg: cfg, store: s,
		lifecycle:     newLifecycle(life, endLife),
		registry:      registry{leases: map[*Lease]struct{}{}, newest: map[string]*Lease{}},
		channel:       newChannel(),
		deadlockCheck: make(chan struct{}, 1),
		events:        &events{cfg.logger, logHooks(cfg.logger), cfg.observers},
	}
	c.signals.client, c.watches.client = c, c
	c.dispatch = newDispatch(c)
	waiting := waitlist.Config{
		Store: s, Client: c.channel, Life: life, Closing: c.closing, Logger: cfg.logger, Report: c.Report,
		BeginCall: func() bool { return c.beginRelease() == nil }, EndCall: c.endCall, Background: c.background, Retry: retry,
	}
	if !cfg.pollOnly {
		waiting.Listen, waiting.Needed = c.signals.listen, c.signals.needListener
	}
	c.waiters = waitlist.New(waiting)
	c.renew = newRenewer(c)
	go c.renew.run()
	c.pruner = newPruner(c)
	return c, nil
}

// Schema returns the schema of the client's tables.
func (c *Client) Schema() string { return c.cfg.schema }

// Close closes the client. Waiting calls return ErrClosed, the Context of every lease ends, and
// then Close releases the leases, also those whose release has failed, and stops the connections
// and goroutines. Stop the protected work first, because others may acquire the locks meanwhile.
//
// If ctx ends first, Close returns its error after it has stopped everything local, and leases that
// are not released expire. If ctx has ended before the call, as is common after a signal, or
// carries a lease of this client, Close has 5 s. A second call waits for the first one and returns
// its error.
func (c *Client) Close(ctx context.Context) error {
	ctx, cancel := outlasting(ctx, func(l *Lease) bool { return l.client == c })
	defer cancel()
	if ctx.Err() != nil {
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), timing.StatementBound)
		defer cancel()
	}
	if c.beginClose() {
		c.closeErr = c.shutDown(ctx, c.registry.close())
		close(c.closed)
		return c.closeErr // also when ctx ended while dead connections were closed
	}
	select { // if both are ready, either result is right: the first call has ended, or this one's time has
	case <-c.closed:
		return c.closeErr
	case <-ctx.Done():
		return errs.Errorf("pglock: close: not done yet: %w", context.Cause(ctx))
	}
}

// shutDown closes the client. The end of ctx ends the client's life, and with it every statement in
// progress, so nothing here waits longer.
func (c *Client) shutDown(ctx context.Context, held []*Lease) error {
	close(c.closing)
	defer context.AfterFunc(ctx, func() { c.endLife(ErrClosed) })()
	defer time.AfterFunc(timing.StatementBound, c.endCleanup).Stop()
	err := c.releaseAll(ctx, held)
	c.pruner.stop()
	c.renew.stop()
	c.drain()
	c.dispatch.Stop()
	c.waiters.Stop(ctx)
	c.watches.stop(ctx)
	c.endLife(ErrClosed)
	c.store.Close(ctx)
	return err
}

// releaseAll ends all leases and then releases them, as many at a time as the dispatcher can send.
// After the first failure to reach the server, it lets the others expire.
func (c *Client) releaseAll(ctx context.Context, held []*Lease) error {
	// Every lease must end before the first lock is free for others.
	held = slices.DeleteFunc(held, func(l *Lease) bool {
		return !l.end(errReleasedByClose) && errors.Is(l.Err(), ErrLost) // its holder knows
	})
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	failed := make([]error, len(held))
	slots := make(chan struct{}, c.store.Slots()*c.cfg.batchSize())
	var all sync.WaitGroup
	for i, l := range held {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			if failed[i] = context.Cause(ctx); failed[i] == nil {
				failed[i] = l.awaitRelease(ctx, ctx.Done())
			}
			if errors.Is(failed[i], ErrUnavailable) {
				giveUp(failed[i])
			}
		})
	}
	all.Wait()
	return firstOf(failed)
}

// firstOf returns the first error and the number of errors, because one message is enough for a
// thousand leases on a dead server.
func firstOf(all []error) error {
	all = errs.Causes(all...)
	switch len(all) {
	case 0:
		return nil
	case 1:
		return all[0]
	}
	return errs.Errorf("%w (and %d more leases)", all[0], len(all)-1)
}

// newChannel returns a random channel name of 33 letters and digits, unique in every schema.
func newChannel() string { return "pglock_" + strings.ToLower(rand.Text()) }

// WithConn runs fn with a connection of the application's pool or *sql.DB, for packages on top of a
// Client that have their own tables. It waits for a connection until ctx is done, holds no lock,
// and works after Close too.
//
// The error is that of fn or of the pool. fn must end its transactions: a connection that is then
// closed, busy or in one is not used again.
func (c *Client) WithConn(ctx context.Context, fn func(conn *pgx.Conn) error) error {
	return c.store.WithConn(ctx, fn)
}
