package advisory

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/internal/await"
)

// call is one attempt to lock: what, how, and since when.
type call struct {
	keys   []Key // sorted, each once
	shared bool
	cfg    lockConfig
	begun  time.Time

	notCounted time.Duration // of the time since then: the waits for a connection
}

// newCall checks what it is given and puts the keys in order.
func newCall(keys []Key, shared bool, cfg lockConfig) (*call, error) {
	for _, k := range keys {
		if err := k.check(); err != nil {
			return nil, err
		}
	}
	keys = slices.Clone(keys)
	slices.SortFunc(keys, Key.compare)
	return &call{keys: slices.Compact(keys), shared: shared, cfg: cfg, begun: time.Now()}, nil
}

// bound returns how long the server may wait for the lock, 0 for as long as it takes, and
// whether ctx sets it rather than the time-out.
func (c *call) bound(ctx context.Context) (d time.Duration, byContext bool) {
	if c.cfg.timeout > 0 {
		d = max(c.left(), time.Millisecond)
	}
	if deadline, ok := ctx.Deadline(); ok {
		if left := max(time.Until(deadline), time.Millisecond); d == 0 || left < d {
			return left, true
		}
	}
	return d, false
}

// left is what is left of the time-out.
func (c *call) left() time.Duration { return c.cfg.timeout - time.Since(c.begun) + c.notCounted }

// notAcquired is the error for a lock that was not granted because of cause, nil if it is busy.
func (c *call) notAcquired(cause error) error {
	return &NotAcquiredError{Keys: c.keys, Waited: time.Since(c.begun), Cause: cause}
}

// explain turns why the statement failed into this package's errors. byContext tells that
// the server's time-out was made from the deadline of ctx.
func (c *call) explain(ctx context.Context, err error, byContext bool) error {
	switch state := sqlState(err); {
	case state == failedTransaction, state == noTransaction, errors.Is(err, pgx.ErrTxClosed):
		return fmt.Errorf("%w: %w", ErrTx, err)
	case state == deadlockDetected:
		return c.notAcquired(fmt.Errorf("%w: %w", ErrDeadlock, err))
	case ctx.Err() != nil:
		return c.notAcquired(await.Ended(ctx))
	case state == lockNotAvailable && byContext: // a moment before ctx itself
		return c.notAcquired(context.DeadlineExceeded)
	case state == lockNotAvailable:
		return c.notAcquired(fmt.Errorf("%w: %w", ErrTimeout, err))
	case state == queryCanceled: // the transaction's statement_timeout, or somebody with pg_cancel_backend
		return c.notAcquired(err)
	}
	return fmt.Errorf("advisory: lock %v: %w", c.keys, err)
}
