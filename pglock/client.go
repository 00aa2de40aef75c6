package pglock

import (
	"context"
	"database/sql"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/leasetable"
)

// Client acquires locks in one database. Open one Client per process and keep it. It is safe for
// concurrent use.
type Client struct {
	leases *leasetable.Client
	pool   *pgxpool.Pool // the application's, from Open; only DoTx uses it
	db     *sql.DB       // the same, from OpenDB
	schema string
	closed atomic.Bool
}

// Open returns a client for the database that pool connects to. It connects once and checks that
// the tables exist and have this module's version. Package migrations and `pglock migrate up`
// create them. On failure nothing is left behind, and the error wraps ErrSchema, ErrPrivilege,
// ErrUnavailable, ErrInvalidOption or ErrInvalidSchema. ctx bounds Open only.
//
// Leases use a few connections of the client's own, with the configuration of the pool, so that an
// exhausted pool does not lose leases. Only DoTx uses the pool itself. Close does not close it.
func Open(ctx context.Context, pool *pgxpool.Pool, opts ...Option) (*Client, error) {
	leases, err := leasetable.Open(ctx, pool, opts...)
	if err != nil {
		return nil, err
	}
	return &Client{leases: leases, pool: pool, schema: leases.Schema()}, nil
}

// Close ends the client: waiting calls return ErrClosed, the Context of every lease is done, the
// leases are released, and connections and goroutines end. Stop the work that leases protect
// before.
//
// ctx bounds Close. Leases that could not be released by then expire by their TTL. If ctx is done
// when Close is called, Close is bounded by 5 s instead. Close may be called again.
func (c *Client) Close(ctx context.Context) error {
	c.closed.Store(true)
	return c.leases.Close(ctx)
}

// Acquire waits until the lock of that name is granted, the time of WithWait is over, or ctx is
// done. On success the lease is held and renewed until it is released or lost, or until the client
// is closed. ctx does not govern the lease.
//
// On failure nothing is held or left behind. The error is a *WaitError, a *HeldError if ctx already
// carries a lease of that lock (see WithJoin), or it wraps ErrInvalidName, ErrInvalidOption or
// ErrKind. In a *WaitError errors.Is finds ErrNotAcquired and the cause: ErrTimeout,
// context.Canceled, context.DeadlineExceeded, ErrClosed or ErrUnavailable. With WithWait(0) it is a
// *BusyError instead, as from TryAcquire.
func (c *Client) Acquire(ctx context.Context, name string, opts ...LeaseOption) (*Lease, error) {
	l, err := c.leases.Acquire(ctx, name, opts...)
	return (*Lease)(l), err
}

// TryAcquire acquires the lock of that name if it is free, without waiting for it. If the lock is
// held, the error is a *BusyError (errors.Is ErrNotAcquired) with the holder and the remaining time
// of its lease, and nothing was written. ctx bounds the call, not the lease.
func (c *Client) TryAcquire(ctx context.Context, name string, opts ...LeaseOption) (*Lease, error) {
	l, err := c.leases.TryAcquire(ctx, name, opts...)
	return (*Lease)(l), err
}

// Adopt returns a lease of the grant that f names, which another process was granted and has handed
// over with Lease.HandOver. It renews the grant at once and makes this client's holder name the one
// that others see. Token and labels stay. The lease is renewed and released like one from Acquire.
// Rules such as WithMaxHold do not come along with the fence: pass them again.
//
// If the grant has ended, the error is a *StaleError (errors.Is ErrStale), and nothing has changed.
// If no grant of this client's schema can have the fence, it wraps fencing.ErrInvalidFence. If the
// server does not answer, it wraps ErrUnavailable, and if ctx is done first, ctx's error and cause;
// the grant may have been renewed then. ctx bounds the call, not the lease.
//
// Adopt does not exclude the process that had the grant before: the database can't tell the two
// apart. HandOver makes sure that it neither renews nor releases. See [leasetable.Client.Adopt].
func (c *Client) Adopt(ctx context.Context, f Fence, opts ...LeaseOption) (*Lease, error) {
	l, err := c.leases.Adopt(ctx, f, opts...)
	return (*Lease)(l), err
}

// Get returns information about the lock of that name, which is held or free. The error wraps
// ErrNotFound if the name was never granted or has been pruned. ctx bounds the call.
func (c *Client) Get(ctx context.Context, name string) (LockInfo, error) {
	return c.leases.Get(ctx, name)
}

// Prune deletes the rows of names that had no holder for the time idle, and returns the number of
// deleted rows. Later grants of such a name still get a larger token. It skips rows that are in
// use. ctx bounds the call.
func (c *Client) Prune(ctx context.Context, idle time.Duration) (int64, error) {
	return c.leases.Prune(ctx, idle)
}

// Schema returns the name of the schema that holds the tables.
func (c *Client) Schema() string { return c.schema }
