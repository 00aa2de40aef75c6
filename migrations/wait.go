package migrations

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pglock/pglock-go/internal/await"
)

// wait takes the lock, and says meanwhile, and if it gives up, who holds it.
//
// Nobody who waits has a snapshot: CREATE INDEX CONCURRENTLY, run by the holder, waits
// for all that are older than itself. And nobody's wait outlives its bound: what was
// granted too late is given back by those who grant.
func wait(ctx context.Context, l lock, name string, cfg waitConfig) (hold, error) {
	begun := time.Now()
	bounded, cancel := ctx, func() {}
	if cfg.timeout > 0 {
		bounded, cancel = context.WithTimeoutCause(ctx, cfg.timeout, ErrTimeout)
	}
	defer cancel()
	reports := reporter{lock: l, cfg: cfg, name: name, begun: begun}
	stop := reports.start(bounded)
	h, err := l.acquire(bounded)
	stop()
	switch {
	case err == nil:
		return h, nil
	case !errors.Is(err, ErrNotAcquired):
		return nil, err
	}
	e := &WaitError{Lock: name, Waited: time.Since(begun), Cause: err}
	look, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookBound)
	defer cancel()
	if who, err := l.holder(look); err == nil { // without an answer the error has no name in it
		e.Holder, e.Held = who.name, who.held
	}
	return nil, e
}

// WaitError tells that a lock was waited for in vain, and who held it. errors.Is finds
// ErrNotAcquired and what ended the waiting: ErrTimeout, context.Canceled,
// context.DeadlineExceeded, or the context's own cause.
type WaitError struct {
	Lock   string
	Holder string        // empty if nobody could tell
	Held   time.Duration // for how long it had held the lock; 0 if that can't be seen
	Waited time.Duration
	Cause  error
}

func (e *WaitError) Error() string {
	return fmt.Sprintf("migrations: gave up on lock %q after %v: it belongs to %s: %v",
		e.Lock, e.Waited.Round(time.Millisecond), holding{name: e.Holder, held: e.Held}, e.Cause)
}

// Unwrap makes errors.Is find ErrNotAcquired and the cause.
func (e *WaitError) Unwrap() []error { return []error{ErrNotAcquired, e.Cause} }

// during returns a context that is done when parent is or when the lock is not held any more.
func during(parent context.Context, h hold) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(parent)
	unlink := context.AfterFunc(h.Context(), func() { cancel(h.Err()) })
	return ctx, func() {
		unlink()
		cancel(nil)
	}
}

// giveUp releases the lock, whatever became of ctx.
func giveUp(ctx context.Context, h hold) error {
	return await.CleanUp(ctx, h.Release)
}
