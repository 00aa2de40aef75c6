package gooselock

import (
	"context"
	"database/sql"
	"fmt"
	"sync"
	"time"

	"github.com/pglock/pglock-go/pglock"
)

// Locker is a lock.Locker of goose: a lease. Use one for each Provider.
type Locker struct {
	client *pglock.Client
	name   string
	cfg    config

	mu    sync.Mutex
	lease *pglock.Lease // guarded by mu; nil if not locked
}

// NewLocker returns the lock of that name. The lease is renewed by the client until Unlock. It asks nobody.
func NewLocker(client *pglock.Client, name string, opts ...Option) (*Locker, error) {
	cfg, err := newConfig(opts)
	if err != nil {
		return nil, err
	}
	if client == nil {
		return nil, fmt.Errorf("%w: the client is nil", pglock.ErrInvalidOption)
	}
	return &Locker{client: client, name: name, cfg: cfg}, nil
}

// Lock waits for the lock until ctx is done or WithTimeout is over. Then the error is a *pglock.WaitError (errors.Is
// ErrNotAcquired), with a *pglock.BusyError that tells who holds it. The database that goose passes is not used.
//
// If ctx, or one that it comes from, was made by StopOnLoss, it is cancelled when the lease is lost.
func (l *Locker) Lock(ctx context.Context, _ *sql.DB) error {
	bounded, cancel := l.cfg.bound(ctx)
	defer cancel()
	lease, err := l.client.Acquire(bounded, l.name, l.cfg.lease...)
	if err != nil {
		return err
	}
	l.mu.Lock()
	l.lease = lease
	l.mu.Unlock()
	if stop, ok := ctx.Value(stopKey{l}).(context.CancelCauseFunc); ok {
		context.AfterFunc(lease.Context(), func() {
			if err := lease.Err(); !isReleased(err) {
				stop(err)
			}
		})
	}
	return nil
}

// Unlock gives the lock back, also when ctx has ended. If the lease was lost meanwhile the error wraps ErrLost: others
// may have migrated, too.
func (l *Locker) Unlock(ctx context.Context, _ *sql.DB) error {
	l.mu.Lock()
	lease := l.lease
	l.lease = nil
	l.mu.Unlock()
	if lease == nil {
		return fmt.Errorf("gooselock: unlock of %q: not locked", l.name)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), unlockBound)
	defer cancel()
	return lease.Release(ctx)
}

// unlockBound bounds the wait for the server's answer to Unlock.
const unlockBound = 10 * time.Second

// stopKey finds what cancels the context of a run under that locker.
type stopKey struct{ locker *Locker }

// StopOnLoss returns a context for goose's Provider that is cancelled when the lease of a run under it is lost: goose then
// cancels the migration under way, and begins no other. The cause wraps ErrLost. Call stop when the run has returned.
func (l *Locker) StopOnLoss(ctx context.Context) (_ context.Context, stop context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	return context.WithValue(ctx, stopKey{l}, cancel), func() { cancel(nil) }
}
