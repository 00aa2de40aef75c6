package runner

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/pglock"
)

// lock excludes other runs: it is an advisory lock of a session, or a lease.
type lock interface {
	acquire(ctx context.Context) (heldLock, error) // the first is meaningless with an error
	holder(ctx context.Context) holder
}

// heldLock is an *advisory.Session or a *pglock.Lease.
type heldLock interface {
	Err() error // nil while it is held
	Release(ctx context.Context) error
}

// holder describes for people who holds a lock. It is empty if the server does not say, if the lock
// is free, and if the holder is the caller itself, which was granted the lock just now.
type holder struct {
	name string
	held time.Duration // 0 if it is not known
}

// locks are the run's own lock and, with WithKey, that of another program. Each run acquires its own
// lock first, and the other program acquires only one, so they can't deadlock.
type locks []lock

// open makes the locks, on the call's own pool, which a lease does not need. It does not acquire them.
func (c *config) open(own *pgxpool.Pool) (all locks) {
	if c.client != nil {
		all = append(all, leaseLock{c})
	} else {
		all = append(all, sessionLock{c, advisory.NewKey(keyNamespace, c.name), own})
	}
	if c.key != nil {
		all = append(all, sessionLock{c, advisory.KeyFromInt64(*c.key), own})
	}
	return all
}

// acquire acquires all locks, or none.
func (all locks) acquire(ctx context.Context) (held heldLocks, err error) {
	for _, l := range all {
		h, err := l.acquire(ctx)
		if err != nil {
			return nil, errs.Join(err, release(ctx, held))
		}
		held = append(held, h)
	}
	return held, nil
}

// holder returns the holder of the first lock that has another one than the caller.
func (all locks) holder(ctx context.Context) (h holder) {
	for _, l := range all {
		if h = l.holder(ctx); h.name != "" {
			break
		}
	}
	return h
}

// heldLocks are lost as soon as one of them is.
type heldLocks []heldLock

func (all heldLocks) Err() error {
	for _, h := range all {
		if err := h.Err(); err != nil {
			return err
		}
	}
	return nil
}

func (all heldLocks) Release(ctx context.Context) (err error) {
	for _, h := range slices.Backward(all) {
		err = errs.Join(err, h.Release(ctx))
	}
	return err
}

// leaseLock is a lease.
type leaseLock struct{ *config }

func (l leaseLock) acquire(ctx context.Context) (heldLock, error) {
	return l.client.Acquire(ctx, l.name, append([]pglock.LeaseOption{pglock.WithHolder(l.caller)}, l.lease...)...)
}

// holder measures the time by this machine's clock: only people read it.
func (l leaseLock) holder(ctx context.Context) holder {
	info, err := l.client.Get(ctx, l.name)
	if err != nil || !info.Held() || info.Holder == l.caller {
		return holder{}
	}
	return holder{info.Holder, max(time.Since(info.AcquiredAt), 0)}
}
