package advisory

import (
	"cmp"
	"context"
	"embed"
	"slices"
	"strings"
	"time"

	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/pgtx"
	"github.com/pglock/pglock-go/internal/schema"
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
	if err := errs.ApplyBy("advisory", &cfg, opts, func(o O, c *config) error { return o.apply(c) }); err != nil {
		return nil, err
	}
	keys = slices.Concat(keys, cfg.moreKeys)
	for _, k := range keys {
		if k.invalid != "" {
			return nil, errs.InvalidOption("advisory", "invalid key: %s", k.invalid)
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

//go:embed sql
var files embed.FS

// statements are those in files, which name no schema.
var statements = schema.Statements(files, schema.Default)

// statement returns the query that locks all keys of the call until the transaction ends, and
// waits for lockTimeout at most; 0 is no bound. The second column of its row is the transaction's
// isolation level.
func (c *call) statement(lockTimeout time.Duration) pgtx.Query {
	if len(c.keys) > 1 {
		ids := make([]int64, len(c.keys))
		for i, k := range c.keys {
			ids[i] = k.id
		}
		return pgtx.Query{SQL: statements["lock"], Args: []any{pgtx.Milliseconds(lockTimeout), ids, c.shared}}
	}
	function := c.suffixed("pg_advisory_xact_lock")
	if lockTimeout == 0 {
		q := c.keys[0].calling(function)
		q.SQL += ", current_setting('transaction_isolation')"
		return q
	}
	return pgtx.Query{
		SQL:  strings.Replace(statements["lock_one"], "pg_advisory_xact_lock(", function+"(", 1),
		Args: []any{pgtx.Milliseconds(lockTimeout), c.keys[0].id},
	}
}

// calling returns the query that calls the lock function with the key.
func (k Key) calling(function string) pgtx.Query {
	return pgtx.Query{SQL: "SELECT " + function + "($1::bigint)", Args: []any{k.id}}
}

// suffixed returns the name of the lock function for the call's mode.
func (c *call) suffixed(function string) string {
	if c.shared {
		return function + "_shared"
	}
	return function
}
