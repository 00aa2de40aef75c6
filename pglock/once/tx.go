package once

import (
	"cmp"
	"context"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/pgtx"
	"github.com/pglock/pglock-go/pglock/internal/records"
)

// savepoint keeps a call that fails from aborting the caller's transaction, and undoes what fn
// wrote.
const savepoint pgtx.Savepoint = "pglock_once"

// Tx runs fn once for each key, and stores its result in tx: fn's writes, the key and the result
// are committed together or not at all. If a call with the key has been committed, Tx returns its
// result and does not run fn. If another transaction has called Tx with the key and is still open,
// Tx waits for it: after its commit Tx returns its result, after its rollback Tx runs fn.
//
// fn writes in tx. It must not end tx, call Tx with the same key, or have effects outside the
// database, which would not be undone with tx: use Do for those.
//
// fingerprint distinguishes requests: it has the parts in which two of them may differ, and its
// SHA-256 is stored. A call with the key of another request returns ErrMismatch. nil is a
// fingerprint like any other.
//
// A []byte is stored as it is, another type as JSON, at most MaxResult bytes. The caller whose fn
// ran also gets the result as it was stored.
//
// On failure tx is as before the call and remains usable, unless the error wraps advisory.ErrTx or
// is that of a broken connection. fn's writes are undone and nothing is recorded. The error is one
// of these:
//   - Any error of fn: the next call runs fn.
//   - ErrMismatch, ErrNoResult or a *FailedError, about the record of an earlier call.
//   - ErrInProgress, after the wait that WithWait or the transaction's lock_timeout allows.
//   - ErrOutcomeUnknown: Do has begun an effect with the key.
//   - fencing.ErrSnapshot (SQLSTATE 40001), at REPEATABLE READ and SERIALIZABLE only: see Isolation
//     levels above.
//   - ErrResultTooLarge, or the error of the JSON encoder.
//   - ErrInvalidKey or pglock.ErrInvalidOption, before anything is sent; advisory.ErrTx, an error
//     of the database, or the context's error and cause.
//
// Tx takes four round trips in addition to fn's, and three for a repeated call. ctx bounds the call
// and the wait. If ctx ends during the wait, the statement is canceled and tx remains usable.
func Tx[T any](ctx context.Context, tx fencing.Tx, key string, fingerprint []byte, fn func(ctx context.Context) (T, error), opts ...TxOption) (T, error) {
	var zero T
	cfg, err := newConfig(opts, TxOption.applyTx)
	switch err = cmp.Or(err, checkKey(key)); {
	case err != nil:
		return zero, err
	case fn == nil:
		return zero, errs.InvalidOption("once", "tx %.64q: the function is nil: must be set", key)
	case pgtx.IsNil(tx):
		return zero, errs.Errorf("once: tx %.64q: %w: it is nil", key, errs.ErrTx)
	}
	c := txCall{config: cfg, tx: tx, Call: callOf(cfg, key, fingerprint), records: records.Table{DB: tx, Schema: cfg.schema}}
	e := encoder[T]{key: key}
	data, err := c.run(ctx, func(ctx context.Context) ([]byte, error) {
		data, err := e.encode(fn(ctx))
		if classOf(err) == noResult {
			err = errs.Errorf("once: tx %.64q: the result can't be stored, and nothing was done: %w", key, err)
		}
		return data, conceal(err)
	})
	if err != nil {
		return zero, err
	}
	return decode[T](key, data)
}

type txCall struct {
	config
	records.Call
	tx      fencing.Tx
	records records.Table
}

// run runs fn between SAVEPOINT and RELEASE SAVEPOINT, unless the key has a record.
func (c *txCall) run(ctx context.Context, fn func(ctx context.Context) ([]byte, error)) (data []byte, err error) {
	if ctx.Err() != nil {
		return nil, errs.Errorf("once: tx %.64q: %w", c.Key, errs.ContextErr(ctx))
	}
	if err := savepoint.Set(ctx, c.tx); err != nil {
		return nil, c.explain(ctx, err)
	}
	finished := false
	defer func() { // without recover, so that a panic keeps its stack
		if finished {
			return
		}
		if undone := savepoint.Undo(ctx, c.tx); undone != nil {
			data, err = nil, errs.Join(err, undone)
		}
	}()
	r, err := c.claim(ctx)
	switch {
	case err != nil:
		return nil, c.explain(ctx, err)
	case r.Claimed:
		data, err = fn(ctx)
	default:
		data, err = answer(r)
	}
	if err == nil {
		err = pgtx.Uncanceled(ctx, c.tx, func(ctx context.Context) error { return c.finish(ctx, r.Claimed, data) })
	}
	finished = err == nil
	return data, err
}

// claim inserts the record, or returns the record that exists already. It waits for a transaction
// that has inserted one.
func (c *txCall) claim(ctx context.Context) (r records.Record, err error) {
	err = pgtx.Run(ctx, pgtx.Conn(c.tx), pgtx.CancelSoon, func(ctx context.Context) error {
		r, err = c.records.ClaimInTx(ctx, c.Call, c.wait)
		return err
	})
	return r, err
}

// finish writes the result, if the record is this call's, and makes the work since the savepoint
// part of the transaction. It waits for nothing: the row is this transaction's.
func (c *txCall) finish(ctx context.Context, claimed bool, data []byte) error {
	if claimed {
		changed, err := c.records.FinishInTx(ctx, c.Call, data)
		if err != nil {
			return c.explain(ctx, err)
		}
		if !changed {
			return errs.Errorf("once: tx %.64q: %w: fn has ended it or rolled it back", c.Key, errs.ErrTx)
		}
	}
	if _, err := c.tx.Exec(ctx, savepoint.Release().SQL); err != nil {
		return c.explain(ctx, err)
	}
	return nil
}

func (c *txCall) explain(ctx context.Context, err error) error {
	return explain(ctx, "tx", c.Key, c.schema, err)
}
