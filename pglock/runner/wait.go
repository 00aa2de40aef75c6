package runner

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/pgtx"
	"github.com/pglock/pglock-go/pglock"
)

// wait acquires the lock. Meanwhile it reports who holds it, and so does its error.
//
// A waiter holds no snapshot: CREATE INDEX CONCURRENTLY, run by the holder, waits for all snapshots
// that are older than itself. A lock that is granted after the wait has ended is released by
// l.acquire.
func wait(ctx context.Context, l lock, name string, cfg waitConfig) (heldLock, error) {
	start := time.Now()
	bounded, cancel := ctx, func() {}
	if cfg.timeout > 0 {
		bounded, cancel = context.WithTimeoutCause(ctx, cfg.timeout, ErrTimeout)
	}
	defer cancel()
	stopReports := reportWait(bounded, l, name, cfg)
	h, err := l.acquire(bounded)
	stopReports()
	switch {
	case err == nil:
		if cfg.granted != nil {
			cfg.granted(h)
		}
		return h, nil
	case !errors.Is(err, ErrNotAcquired):
		return nil, err
	}
	e := &WaitError{Lock: name, Waited: time.Since(start), Cause: err}
	ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), holderTimeout)
	defer cancel()
	if holder, err := l.holder(ctx); err == nil { // without an answer the error names no holder
		e.Holder, e.Held = holder.name, holder.held
	}
	return nil, e
}

// WaitError reports that a wait ended without the lock, and who held it then. errors.Is finds
// ErrNotAcquired and what ended the wait: ErrTimeout, context.Canceled, context.DeadlineExceeded,
// or the context's own cause.
type WaitError struct {
	Lock   string
	Holder string        // empty if it is not known
	Held   time.Duration // how long the holder has had the lock; 0 if that is not known
	Waited time.Duration
	Cause  error
}

func (e *WaitError) Error() string {
	return fmt.Sprintf("runner: acquire %q: held by %s: gave up after %v: %s",
		e.Lock, errs.OneLine(holderInfo{name: e.Holder, held: e.Held}.String()), e.Waited.Round(time.Millisecond), errs.Reason(endOfWait(e.Cause)))
}

// endOfWait returns what ended the wait that err reports, without what WaitError says itself.
func endOfWait(err error) error {
	var lease *pglock.WaitError
	var session *advisory.NotAcquiredError
	switch {
	case errors.As(err, &lease):
		return lease.Cause
	case errors.As(err, &session) && session.Cause != nil:
		return session.Cause
	}
	return err
}

// Unwrap makes errors.Is find ErrNotAcquired and the cause.
func (e *WaitError) Unwrap() []error { return []error{ErrNotAcquired, e.Cause} }

// release releases the lock, also if ctx has ended.
func release(ctx context.Context, h heldLock) error {
	return pgtx.CleanUp(ctx, h.Release)
}
