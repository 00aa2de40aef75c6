package pglock

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/leasetable"
)

// DoTx runs fn in a transaction that holds the lock of that name, and commits it. It is for short work
// that is a database transaction anyway: what fn writes and the lock end together, so it needs no lease, no
// renewal and no guard. It takes two round trips around fn, on a connection of the application's pool.
//
// On success fn returned nil and the transaction is committed. Otherwise it is rolled back, also when fn
// panics, and the error is fn's own; or it wraps ErrNotAcquired, in which case fn did not run, with ErrTimeout,
// ErrDeadlock, ErrPoolExhausted, or ctx's error and cause; or it is the commit's: ErrCommitUnknown if its answer was
// lost. ErrInvalidName, ErrInvalidOption and ErrClosed are returned at once.
//
// What fn reads is what the last holder of the lock committed, or newer, at every isolation level. fn must not end the
// transaction. Close does not wait for fn.
//
// The lock is an advisory one, with the key that Key returns: it excludes other calls of DoTx with the same name and
// schema, and whoever locks that key, but not Acquire and Do, whose locks are leases. See [advisory.Do].
func (c *Client) DoTx(ctx context.Context, name string, fn func(ctx context.Context, tx pgx.Tx) error, opts ...TxOption) error {
	if err := leasetable.CheckName(name); err != nil {
		return err
	}
	if c.closed.Load() {
		return ErrClosed
	}
	return advisory.Do(ctx, c.pool, c.Key(name), fn, opts...)
}

// Key returns the key under which DoTx locks that name, for advisory.Lock in transactions of one's own, for WithKeys, and
// for psql: there it is SELECT pglock.advisory_key(schema, name), with the schema of the tables as the namespace.
func (c *Client) Key(name string) advisory.Key {
	return advisory.NewKey(c.schema, name)
}
