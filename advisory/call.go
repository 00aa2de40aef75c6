package advisory

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/pglock/pglock-go/internal/backoff"
	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/pgtx"
)

// call is the part that Lock, Do and Acquire have in common.
type call struct {
	keys   []Key // sorted, each once
	shared bool
	cfg    lockConfig
	begun  time.Time
	names  []string // of the keys, for errors

	poolWaited time.Duration // since begun; the timeout does not count it
}

// newCall checks and sorts the keys.
func newCall(keys []Key, shared bool, cfg lockConfig) (*call, error) {
	for _, k := range keys {
		if err := k.check(); err != nil {
			return nil, err
		}
	}
	keys = slices.Clone(keys)
	slices.SortFunc(keys, Key.compare)
	c := &call{keys: slices.Compact(keys), shared: shared, cfg: cfg, begun: time.Now()}
	c.names = make([]string, len(c.keys))
	for i, k := range c.keys {
		c.names[i] = k.name()
	}
	return c, nil
}

// timeoutAt returns when the timeout ends, and the zero time without one.
func (c *call) timeoutAt() time.Time {
	if c.cfg.timeout == 0 {
		return time.Time{}
	}
	return c.begun.Add(c.cfg.timeout + c.poolWaited)
}

// notAcquired returns the error for a lock that was not granted because of cause.
func (c *call) notAcquired(cause error) error {
	return &NotAcquiredError{Keys: c.keys, Waited: time.Since(c.begun), Cause: cause, Names: c.names}
}

// explain turns the error of a statement that locks into this package's errors.
func (c *call) explain(ctx context.Context, err error) error {
	if pgtx.Unusable(err) {
		return errs.Errorf("%w: %w", ErrTx, err)
	}
	if cause := pgtx.WaitCause(ctx, err, c.timeoutAt()); cause != nil {
		return c.notAcquired(cause)
	}
	return errs.Errorf("advisory: lock %s: %w", describeAll(c.keys, c.names), err)
}

// poll repeats try while it returns errBusy, until the timeout has passed or ctx is done.
func (c *call) poll(ctx context.Context, pauses backoff.Backoff, try func() error) error {
	for {
		if err := try(); !errors.Is(err, errBusy) {
			return err
		}
		d, timeout := pauses.Next(), false
		if end := c.timeoutAt(); !end.IsZero() {
			if left := max(time.Until(end), 0); left <= d {
				d, timeout = left, true
			}
		}
		if backoff.Sleep(ctx, d) != nil {
			return c.notAcquired(errs.ContextErr(ctx))
		}
		if timeout {
			return c.notAcquired(ErrTimeout)
		}
	}
}
