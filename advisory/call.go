package advisory

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/pgtx"
)

// call is the part that Lock, Do and Acquire have in common.
type call struct {
	keys   []Key // sorted, each once
	shared bool
	cfg    config
	begun  time.Time

	poolWaited time.Duration // since begun; the timeout does not count it
}

// newCall applies the options, and checks and sorts the keys.
func newCall[O interface{ apply(*config) error }](keys []Key, shared bool, opts []O) (*call, error) {
	cfg := config{poolWait: defaultPoolWait, keepAlive: defaultKeepAlive}
	for _, o := range opts {
		if err := o.apply(&cfg); err != nil {
			return nil, err
		}
	}
	keys = slices.Concat(keys, cfg.moreKeys)
	for _, k := range keys {
		if k.invalid != "" {
			return nil, invalidOption("invalid key: %s", k.invalid)
		}
	}
	slices.SortFunc(keys, func(a, b Key) int { return cmp.Compare(a.id, b.id) })
	return &call{keys: slices.Compact(keys), shared: shared, cfg: cfg, begun: time.Now()}, nil
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
	return &NotAcquiredError{Keys: c.keys, Waited: time.Since(c.begun), Cause: cause}
}

// explain turns the error of a statement that locks into this package's errors.
func (c *call) explain(ctx context.Context, err error) error {
	if pgtx.Unusable(err) {
		return errs.Errorf("%w: %w", ErrTx, err)
	}
	if cause := pgtx.WaitCause(ctx, err, c.timeoutAt()); cause != nil {
		return c.notAcquired(cause)
	}
	return errs.Errorf("advisory: lock %s: %w", describeAll(c.keys), err)
}
