package runner

import (
	"context"
	"errors"
	"time"

	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/pglock"
)

// lock excludes other runs. It is an advisory lock of a session, a lease, or both.
type lock interface {
	acquire(ctx context.Context) (heldLock, error)
	holder(ctx context.Context) (holderInfo, error) // errNoHolder if the lock is free
	close()
}

// heldLock is an *advisory.Session, a *pglock.Lease, or both.
type heldLock interface {
	Err() error // nil while it is held
	Release(ctx context.Context) error
}

// holderInfo describes the holder of a lock to people.
type holderInfo struct {
	name string
	held time.Duration
	own  bool // the caller itself, which was granted the lock just now
}

var errNoHolder = errors.New("runner: the lock is free")

// leaseLock is a lease.
type leaseLock struct {
	name   string
	caller string // its name as a holder
	client *pglock.Client
	opts   []pglock.LeaseOption
}

func newLeaseLock(client *pglock.Client, name, holder string, opts []pglock.LeaseOption) *leaseLock {
	return &leaseLock{name, holder, client, append([]pglock.LeaseOption{pglock.WithHolder(holder)}, opts...)}
}

func (l *leaseLock) acquire(ctx context.Context) (heldLock, error) {
	lease, err := l.client.Acquire(ctx, l.name, l.opts...)
	if err != nil {
		return nil, err // not a nil *Lease in an interface
	}
	return lease, nil
}

// holder measures the time by this machine's clock: only people read it.
func (l *leaseLock) holder(ctx context.Context) (holderInfo, error) {
	info, err := l.client.Get(ctx, l.name)
	switch {
	case errors.Is(err, pglock.ErrNotFound), err == nil && !info.Held():
		return holderInfo{}, errNoHolder
	case err != nil:
		return holderInfo{}, err
	}
	return holderInfo{info.Holder, max(time.Since(info.AcquiredAt), 0), info.Holder == l.caller}, nil
}

func (l *leaseLock) close() {}

// bothLocks is a run's own lock and that of another program. Each run acquires its own lock first,
// and the other program acquires only one, so they can't deadlock.
type bothLocks struct {
	own   lock
	other *sessionLock
}

func (l *bothLocks) acquire(ctx context.Context) (heldLock, error) {
	own, err := l.own.acquire(ctx)
	if err != nil {
		return nil, err
	}
	other, err := l.other.acquire(ctx)
	if err != nil {
		return nil, errs.Join(err, release(ctx, own))
	}
	return &bothHeld{own, other}, nil
}

// holder returns the holder of the run's own lock, or of the other lock if the caller holds its
// own.
func (l *bothLocks) holder(ctx context.Context) (holderInfo, error) {
	holder, err := l.own.holder(ctx)
	if err == nil && !holder.own || err != nil && !errors.Is(err, errNoHolder) {
		return holder, err
	}
	return l.other.holder(ctx)
}

func (l *bothLocks) close() {
	l.own.close()
	l.other.close()
}

// bothHeld is lost as soon as one of its locks is.
type bothHeld struct{ own, other heldLock }

func (h *bothHeld) Err() error {
	if err := h.own.Err(); err != nil {
		return err
	}
	return h.other.Err()
}

func (h *bothHeld) Release(ctx context.Context) error {
	err := h.other.Release(ctx)
	return errs.Join(err, h.own.Release(ctx))
}
