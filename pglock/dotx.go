package pglock

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/pglock/observe"
)

// DoTx runs fn in a transaction that holds an advisory lock with the key of Client.Key, and commits
// the transaction. It suits short work that is one transaction, because the writes and the lock end
// together, without a lease, a renewal or a guard. It takes two round trips in addition to fn's, on
// a connection of the application's pool. opts are those of [advisory.Do].
//
// Unless fn returned nil and the commit succeeded, the transaction is rolled back, also if fn
// panics. The error is then one of these:
//   - fn's own error.
//   - A *NotAcquiredError with its Cause, if fn did not run.
//   - The commit's error, which wraps advisory.ErrCommitUnknown if the reply was lost.
//
// fn reads the data that the last holder of the lock committed, or newer data, at every isolation
// level, and must not end the transaction. Close does not wait for fn. The lock excludes calls of
// DoTx with the same name and schema, and all others that lock this key, but not leases.
//
// If the writes need a *sql.Tx or the transaction of an ORM, begin that, and lock in it before the
// first read:
//
//	err := advisory.Lock(ctx, sqltx.Wrap(tx), client.Key(name))
func (c *Client) DoTx(ctx context.Context, name string, fn func(ctx context.Context, tx pgx.Tx) error, opts ...advisory.DoOption) error {
	return c.runTx(ctx, name, func() error { return c.store.DoTx(ctx, c.Key(name), fn, opts...) })
}

// runTx runs a transaction that holds the key of a name, and reports its outcome.
func (c *Client) runTx(ctx context.Context, name string, run func() error) error {
	if err := CheckName(name); err != nil {
		return err
	}
	if c.hasClosed() {
		return ErrClosed
	}
	began := c.events.now()
	e := observe.ResultEvent{Kind: observe.KindTx, Name: name, Err: run()}
	switch {
	case e.Err == nil:
		e.Outcome = observe.OutcomeDone
	case errors.Is(e.Err, advisory.ErrCommitUnknown):
		e.Outcome = observe.OutcomeUnknown
	}
	e.Duration = since(began)
	c.Report(ctx, e)
	return c.reportRefused(ctx, fencing.Fence{Name: name}, e.Err, observe.OutcomeUnfenced, fencing.ErrUnfenced, fencing.ErrOtherLock)
}

// Key returns the advisory key of that name in DoTx, for advisory.Lock and advisory.WithKeys. In
// SQL it is pglock.advisory_key(schema, name).
func (c *Client) Key(name string) advisory.Key {
	return advisory.NewKey(c.cfg.schema, name)
}
