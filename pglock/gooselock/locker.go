package gooselock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/pgtx"
	"github.com/pglock/pglock-go/pglock"
)

// Locker is a lock.Locker of goose that holds a lease. Use one for each Provider.
type Locker struct {
	client *pglock.Client
	name   string
	cfg    config
	lease  atomic.Pointer[pglock.Lease] // nil if not locked
}

// NewLocker returns the Locker of the named lock, whose lease has the TTL of the client, which
// renews it until Unlock. NewLocker does not contact the database.
func NewLocker(client *pglock.Client, name string, opts ...Option) (*Locker, error) {
	cfg, err := newConfig(opts)
	if err != nil {
		return nil, err
	}
	switch {
	case client == nil:
		return nil, errs.InvalidOption("gooselock", "NewLocker: the client is nil")
	case cfg.key != nil:
		return nil, errs.InvalidOption("gooselock", "NewLocker: WithKey: a lease has no key: use a SessionLocker")
	}
	return &Locker{client: client, name: name, cfg: cfg}, nil
}

// Lock waits for the lock until ctx ends or the time of WithTimeout has passed. The error is then a
// *pglock.WaitError (errors.Is pglock.ErrNotAcquired) with a *pglock.BusyError that names the
// holder. Lock does not use the database that goose passes.
//
// If StopOnLoss made ctx or one of its parents, that context ends when the lease is lost.
func (l *Locker) Lock(ctx context.Context, _ *sql.DB) error {
	bounded, cancel := l.cfg.waitContext(ctx)
	defer cancel()
	lease, err := l.client.Acquire(bounded, l.name)
	if err != nil {
		return err
	}
	l.lease.Store(lease)
	if run, ok := ctx.Value(runKey{l}).(*runContext); ok {
		run.lease.Store(lease)
		context.AfterFunc(lease.Context(), run.checkLease) // the run may have returned, and then its context is done
	}
	return nil
}

// Unlock releases the lock, also if ctx has ended. If the lease was lost before, the error wraps
// pglock.ErrLost: another process may have migrated at the same time.
func (l *Locker) Unlock(ctx context.Context, _ *sql.DB) error {
	lease := l.lease.Swap(nil)
	if lease == nil {
		return fmt.Errorf("gooselock: unlock %q: not locked", l.name)
	}
	return pgtx.CleanUp(ctx, lease.Release)
}

type runKey struct{ *Locker }

// StopOnLoss returns a context for a run of goose's Provider. It ends when the lease of the run is
// lost, or when the client is closed: goose then cancels the current migration and begins no
// other. Its cause wraps pglock.ErrLost or pglock.ErrClosed. After a pause of the process, Err and
// Done report a loss at the first call. Call stop when the run has returned.
func (l *Locker) StopOnLoss(ctx context.Context) (_ context.Context, stop context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	return &runContext{Context: ctx, key: runKey{l}, cancel: cancel}, func() { cancel(nil) }
}

// runContext is the context of a run, which begins before goose acquires the lock. It can't come
// from Lease.WithContext, because it outlives the lease: goose may acquire the lock several times
// in one run.
type runContext struct {
	context.Context //nolint:containedctx // it is a context itself
	key             runKey
	cancel          context.CancelCauseFunc
	lease           atomic.Pointer[pglock.Lease] // the last one; nil before Lock
}

// checkLease ends the context if the lease has ended other than by Unlock.
func (c *runContext) checkLease() {
	lease := c.lease.Load()
	if lease == nil {
		return
	}
	if err := lease.Err(); errors.Is(err, pglock.ErrLost) || errors.Is(err, pglock.ErrClosed) {
		c.cancel(err)
	}
}

// Err reads the clock, as Done does, so that no timer can delay a loss.
func (c *runContext) Err() error            { c.checkLease(); return c.Context.Err() }
func (c *runContext) Done() <-chan struct{} { c.checkLease(); return c.Context.Done() }

func (c *runContext) Value(key any) any {
	if key == c.key {
		return c
	}
	return c.Context.Value(key)
}
