package once

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/pgtx"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/internal/backend"
	"github.com/pglock/pglock-go/pglock/internal/records"
	"github.com/pglock/pglock-go/pglock/observe"
)

// persistence is how long Do repeats a statement that fails for a reason that may pass.
const persistence = 10 * time.Second

// Do runs fn once for each key, for effects outside the database, and stores its result. It holds
// the lock LockName(key) meanwhile. If a call with the key has an answer, Do returns that answer
// without the lock and does not run fn. If another call with the key is in progress, Do waits for
// it.
//
//	acquire the lease ─▶ record "started" ─▶ fn ─▶ record "done" with the result ─▶ release
//
// fn sends the lease's token, or the key, to the receiver of the effect. Its context is done when
// ctx is done and when the lease is lost. fn's result decides about the key:
//
//	fn returns                 the effect         recorded       the next call with the key
//	a result and nil           happened           done           returns the result
//	Failed(err)                failed permanently    failed         returns a *FailedError
//	NotDone(err)               did not happen     nothing        runs fn
//	another error, or panics   may have happened  still started  follows the rule
//
// The rule also applies after the death of a process between "started" and "done". It is an
// *UnknownError (errors.Is ErrOutcomeUnknown) unless WithLookup or WithRetry sets another one.
//
// fingerprint and the result are as for Tx. A result that can't be stored is an error of the first
// call, which wraps ErrNoResult and is returned with the result, and of each repeated call.
//
// On success the result is recorded, durably. Otherwise the error is one of these:
//   - ErrMismatch, ErrNoResult, a *FailedError or an *UnknownError, as above.
//   - fn's error, if it was marked with NotDone.
//   - ErrInProgress, with the *pglock.BusyError, after the wait that WithWait allows.
//   - ErrNotRecorded, with the result: the effect happened, and the database could not be reached
//     for 10 s, or another attempt has replaced this one. The error also wraps ErrOutcomeUnknown.
//   - an error of Acquire, or of the database before fn ran. fn did not run.
//   - ErrInvalidKey or pglock.ErrInvalidOption, before anything is sent.
//
// ctx bounds the waiting and fn. When fn has returned, its outcome is recorded even if ctx is done.
// Do takes two statements on the application's pool in addition to the lease's, and one to look for
// an answer.
func Do[T any](ctx context.Context, client *pglock.Client, key string, fingerprint []byte, fn func(ctx context.Context, l *pglock.Lease) (T, error), opts ...DoOption) (T, error) {
	var zero T
	cfg, err := newConfig(opts, DoOption.applyDo)
	switch err = cmp.Or(err, checkKey(key)); {
	case err != nil:
		return zero, err
	case fn == nil:
		return zero, errs.InvalidOption("once", "do %.64q: the function is nil: must be set", key)
	case client == nil:
		return zero, errs.InvalidOption("once", "do %.64q: the client is nil: must be set", key)
	}
	cfg.schema = client.Schema()
	c := doCall{config: cfg, client: client, store: backend.Inside.Store(client), Call: callOf(cfg, key, fingerprint)}
	e := encoder[T]{key: key}
	c.effect = func(ctx context.Context, l *pglock.Lease) ([]byte, error) { return e.encode(fn(ctx, l)) }
	if cfg.lookup != nil {
		lookup, ok := cfg.lookup.(func(context.Context, *pglock.Lease, Started) (T, error))
		if !ok {
			return zero, errs.InvalidOption("once", "do %.64q: WithLookup has a %T: must return the result type of Do, %T", key, cfg.lookup, zero)
		}
		c.lookup = func(ctx context.Context, l *pglock.Lease, s Started) ([]byte, error) {
			return e.encode(lookup(ctx, l, s))
		}
	}
	began := time.Now()
	answer, err := e.answer(c.run(ctx))
	client.Report(ctx, observe.ResultEvent{
		Kind: observe.KindOnce, Name: LockName(key), Token: c.token, Outcome: c.outcome(err), Duration: time.Since(began), Err: err,
	})
	return answer, err
}

type doCall struct {
	config
	records.Call
	client *pglock.Client
	store  backend.Store // of the client

	token   fencing.Token // of the lease under which effect was called; 0 if it was not
	retries bool          // it replaces an attempt whose outcome is still unknown
	effect  func(ctx context.Context, l *pglock.Lease) ([]byte, error)
	lookup  func(ctx context.Context, l *pglock.Lease, s Started) ([]byte, error) // of WithLookup, or nil
}

func (c *doCall) outcome(err error) observe.Outcome {
	switch {
	case err == nil && c.token == 0:
		return observe.OutcomeRepeated
	case err == nil:
		return observe.OutcomeDone
	case errors.Is(err, ErrOutcomeUnknown):
		return observe.OutcomeUnknown
	}
	return "" // that of err
}

// run returns the recorded answer, or acquires the lease and produces one.
func (c *doCall) run(ctx context.Context) (data []byte, err error) {
	r, err := on(ctx, c, func(ctx context.Context, all records.Records) (records.Record, error) { return all.Read(ctx, c.Call) })
	switch {
	case errors.Is(err, pgx.ErrNoRows):
	case err != nil:
		return nil, explain(ctx, "do", c.Key, c.schema, err)
	case r.State != records.Started, !r.Same:
		return answer(r)
	}
	outer, _ := pglock.FromContext(ctx, LockName(c.Key)) // perhaps of another database
	leases := c.leases
	if c.wait != nil {
		leases = append(leases[:len(leases):len(leases)], pglock.WithWait(*c.wait))
	}
	held, joined := false, false
	acquired := c.client.Do(ctx, LockName(c.Key), func(ctx context.Context, l *pglock.Lease) error {
		// A joined lease (pglock.WithJoin) has the token of an outer call, whose record would look
		// like this call's own.
		if joined = l == outer; !joined {
			held = true
			data, err = c.underLease(ctx, l)
		}
		return nil
	}, leases...)
	var busy *pglock.BusyError
	switch {
	case held: // the record counts, also if the lease was lost after it or could not be released
		return data, err
	case joined, errors.Is(acquired, pglock.ErrHeldByCaller):
		return nil, errs.Errorf("%w: do %.64q: ctx carries the lease of the key: fn must not call Do with its own key", ErrInProgress, c.Key)
	case errors.As(acquired, &busy):
		return nil, errs.Errorf("%w: %w", ErrInProgress, acquired)
	}
	return nil, acquired
}

// underLease records that the effect begins, or follows the rule for one that has begun.
func (c *doCall) underLease(ctx context.Context, l *pglock.Lease) ([]byte, error) {
	var insteadOf fencing.Token // of the attempt that this one replaces
	for {
		r, err := persist(ctx, c, func(ctx context.Context, all records.Records) (records.Record, error) {
			return all.Claim(ctx, c.Call, l.Fence(), l.Holder(), insteadOf)
		})
		switch {
		case err != nil:
			return nil, c.notClaimed(ctx, l, err)
		case r.Claimed:
			c.retries = insteadOf != 0 && c.retry
			return c.attempt(ctx, l, r)
		case r.State != records.Started, !r.Same, r.Token == 0, !c.retry && c.lookup == nil:
			return answer(r)
		}
		if c.lookup != nil {
			data, err := c.lookup(ctx, l, startedBy(r))
			if classOf(err) != notDone {
				return c.recordOutcome(ctx, l, r, data, err)
			}
		}
		insteadOf = r.Token
	}
}

// notClaimed explains why fn did not run. The record may be there, if the reply was lost: without
// this attempt to delete it, the next call would find an unknown outcome.
func (c *doCall) notClaimed(ctx context.Context, l *pglock.Lease, err error) error {
	failure := explain(ctx, "do", c.Key, c.schema, err)
	if !pgtx.Transient(err) {
		return failure
	}
	return errs.Join(failure, pgtx.CleanUp(ctx, func(ctx context.Context) error { return c.forget(ctx, l.Token()) }))
}

// attempt runs fn and records its outcome. If fn panics, the record stays as it is.
func (c *doCall) attempt(ctx context.Context, l *pglock.Lease, r records.Record) ([]byte, error) {
	if ctx.Err() != nil {
		return c.recordOutcome(ctx, l, r, nil, NotDone(errs.Errorf("once: do %.64q: fn did not run: %w", c.Key, errs.ContextErr(ctx))))
	}
	c.token = l.Token()
	data, err := c.effect(ctx, l)
	if err != nil && ctx.Err() != nil && !errors.Is(err, context.Cause(ctx)) {
		err = errs.Errorf("%w: %w", err, errs.ContextErr(ctx)) // the lease was lost, for instance
	}
	return c.recordOutcome(ctx, l, r, data, err)
}

// recordOutcome records the outcome of the attempt r, and returns the answer of this call. ctx does
// not bound it.
func (c *doCall) recordOutcome(ctx context.Context, l *pglock.Lease, r records.Record, data []byte, outcome error) ([]byte, error) {
	state := records.Done
	switch {
	case outcome == nil:
	case classOf(outcome) == noResult:
		outcome = errs.Errorf("%w: key %.64q: %w", ErrNoResult, c.Key, conceal(outcome))
	case classOf(outcome) == failed:
		state, data = records.Failed, []byte(outcome.Error())
		data = data[:min(len(data), MaxResult)]
		outcome = &FailedError{Key: c.Key, Text: string(data), Cause: outcome}
	case classOf(outcome) == notDone && !c.retries: // an earlier attempt may still have happened
		if err := c.forget(context.WithoutCancel(ctx), r.Token); err != nil {
			return nil, &UnknownError{startedBy(r), errs.Join(outcome, err)}
		}
		return nil, conceal(outcome)
	default:
		return nil, &UnknownError{startedBy(r), outcome}
	}
	changed, err := persist(context.WithoutCancel(ctx), c, func(ctx context.Context, all records.Records) (bool, error) {
		return all.Finish(ctx, c.Call, r.Token, l.Token(), state, data)
	})
	switch {
	case err != nil:
		return nil, notRecorded(startedBy(r), outcome, err)
	case changed:
		return data, outcome
	}
	return c.overtaken(ctx, l, outcome) // the record is not that attempt's any more
}

// overtaken returns the answer of an attempt whose record is not its own any more, or is final
// already: a first statement may have succeeded without an answer.
func (c *doCall) overtaken(ctx context.Context, l *pglock.Lease, outcome error) ([]byte, error) {
	r, err := persist(context.WithoutCancel(ctx), c, func(ctx context.Context, all records.Records) (records.Record, error) { return all.Read(ctx, c.Call) })
	switch {
	case err == nil && r.State != records.Started:
		return answer(r)
	case err == nil:
		err = fmt.Errorf("the attempt with token %d has replaced this one", r.Token)
	case errors.Is(err, pgx.ErrNoRows):
		err = errors.New("the record was deleted")
	}
	return nil, notRecorded(Started{Key: c.Key, Token: l.Token(), Holder: l.Holder()}, outcome, err)
}

func notRecorded(s Started, outcome, err error) error {
	return errs.Join(&UnknownError{s, errs.Errorf("%w: %w", ErrNotRecorded, err)}, outcome)
}

func (c *doCall) forget(ctx context.Context, token fencing.Token) error {
	_, err := persist(ctx, c, func(ctx context.Context, all records.Records) (none struct{}, err error) {
		return none, all.Forget(ctx, c.Call, token)
	})
	return err
}

// persist is like on, but repeats op until it succeeds or fails permanently, ctx ends, or the time
// of persistence has passed. A repeated statement finds the record that it wrote before.
func persist[T any](ctx context.Context, c *doCall, op func(ctx context.Context, all records.Records) (T, error)) (result T, err error) {
	ctx, cancel := context.WithTimeout(ctx, persistence)
	defer cancel()
	err = pgtx.Persist(ctx, func(ctx context.Context) error { result, err = on(ctx, c, op); return err })
	return result, err
}

func on[T any](ctx context.Context, c *doCall, op func(ctx context.Context, all records.Records) (T, error)) (result T, err error) {
	err = c.store.Records(ctx, func(ctx context.Context, all records.Records) error { result, err = op(ctx, all); return err })
	return result, err
}
