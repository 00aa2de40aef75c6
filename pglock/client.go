package pglock

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/leasetable"
)

// Client is the front door to a database's locks. It is safe for concurrent use.
// Make one for a process and keep it.
type Client struct {
	leases *leasetable.Client
	pool   *pgxpool.Pool // the application's: DoTx uses it
	schema string
	closed atomic.Bool
}

// Open returns a client for the database that pool leads to. It connects once,
// and checks that the tables are there and of this module's version: otherwise
// it fails with ErrSchema (create them with package migrations or `pglock migrate
// up`), ErrPrivilege, ErrUnavailable, ErrInvalidOption or ErrInvalidSchema, and
// leaves nothing behind. ctx bounds Open alone.
//
// Leases use a few connections of the client's own, configured like the pool's, so
// that a starved pool does not lose leases. The pool is neither used for
// leases nor closed.
func Open(ctx context.Context, pool *pgxpool.Pool, opts ...Option) (*Client, error) {
	leases, err := leasetable.Open(ctx, pool, opts...)
	if err != nil {
		return nil, err
	}
	return &Client{leases: leases, pool: pool, schema: leases.Schema()}, nil
}

// Close ends the client: waiting calls return ErrClosed, every lease's Context is
// done, the leases are released, connections and goroutines end. ctx bounds it;
// what could not be released by then ends by its TTL. It may be called again.
func (c *Client) Close(ctx context.Context) error {
	c.closed.Store(true)
	return c.leases.Close(ctx)
}

// Acquire waits until name is granted or ctx is done. On success the lease is
// held and renewed until it is released, lost, or the client is closed; ctx has no
// more part in it. On failure nothing is held, and nothing is left behind. The
// error is a *WaitError, in which errors.Is finds ErrNotAcquired together with
// context.Canceled, context.DeadlineExceeded, ErrClosed or ErrUnavailable; or it
// wraps ErrInvalidName or ErrInvalidOption.
func (c *Client) Acquire(ctx context.Context, name string, opts ...LeaseOption) (*Lease, error) {
	return c.leases.Acquire(ctx, name, opts...)
}

// TryAcquire asks once. If the lock is held it returns a *BusyError (errors.Is
// ErrNotAcquired) that tells by whom and for how long; nothing was written then.
// ctx bounds the asking, not the lease.
func (c *Client) TryAcquire(ctx context.Context, name string, opts ...LeaseOption) (*Lease, error) {
	return c.leases.TryAcquire(ctx, name, opts...)
}

// Get reads the lock of that name, held or free. It returns ErrNotFound if the
// name was never granted or has been pruned.
func (c *Client) Get(ctx context.Context, name string) (Lock, error) {
	return c.leases.Get(ctx, name)
}

// Prune deletes the rows of names that nobody has held for that long, and
// returns how many. Tokens stay in order. It waits for nobody.
func (c *Client) Prune(ctx context.Context, idle time.Duration) (int64, error) {
	return c.leases.Prune(ctx, idle)
}
