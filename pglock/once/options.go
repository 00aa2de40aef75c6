package once

import (
	"context"
	"time"

	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/pglock"
)

const (
	defaultRetention = 24 * time.Hour
	maxRetention     = 10 * 365 * 24 * time.Hour
)

// TxOption configures a call of Tx.
type TxOption interface{ applyTx(*config) error }

// DoOption configures a call of Do.
type DoOption interface{ applyDo(*config) error }

// ResolveOption configures a call of Resolve.
type ResolveOption interface{ applyResolve(*config) error }

// Option configures a call of Tx or Do.
type Option interface {
	TxOption
	DoOption
}

// SchemaOption names the schema of the keys, for the functions that have no client.
type SchemaOption interface {
	TxOption
	ResolveOption
}

type config struct {
	schema    string
	retention time.Duration
	wait      *time.Duration // nil: until ctx ends
	leases    []pglock.LeaseOption
	retry     bool
	reason    string
	lookup    any // func(context.Context, *pglock.Lease, Started) (T, error), with the T of the call
}

type option func(*config) error

func (o option) applyTx(c *config) error { return o(c) }
func (o option) applyDo(c *config) error { return o(c) }

type inSchema string

func (o inSchema) applyTx(c *config) error {
	c.schema = string(o)
	return schema.Validate(c.schema)
}

func (o inSchema) applyResolve(c *config) error { return o.applyTx(c) }

type reason string

func (o reason) applyResolve(c *config) error {
	c.reason = string(o)
	err := errs.CheckText(c.reason, errs.MaxName)
	return errs.Require("once", err == nil, "the reason %v", err)
}

// WithReason says how the operator has found the outcome out, and perhaps who it was, in 1 to 512 bytes
// of UTF-8 without NUL. By default, Resolve records no reason.
func WithReason(text string) ResolveOption { return reason(text) }

// WithSchema names the schema of the keys, for Tx, Get, Resolve and Prune, which by default is "pglock". Do
// uses its client's schema.
func WithSchema(name string) SchemaOption { return inSchema(name) }

// WithRetention sets how long an answer is kept: 1 ms to 10 years, and 24 h by default. Afterwards
// the key may be used for another request. A record without an outcome is kept until it has one.
func WithRetention(d time.Duration) Option {
	return option(func(c *config) error {
		c.retention = d
		return errs.Require("once", d >= time.Millisecond && d <= maxRetention, "retention %v: out of range: must be from 1ms to %v", d, maxRetention)
	})
}

// WithWait bounds the wait for another call with the same key. When the time has passed, the error
// wraps ErrInProgress, and with 0 the call does not wait at all. WithWait does not bound fn, and by
// default a call waits until ctx ends.
func WithWait(d time.Duration) Option {
	return option(func(c *config) error {
		c.wait = &d
		return errs.Require("once", d >= 0, "wait %v is negative: must be 0 or more", d)
	})
}

// WithLease sets options of the lease of Do, such as pglock.WithTTL, which precede those of the
// client.
func WithLease(opts ...pglock.LeaseOption) DoOption {
	return option(func(c *config) error { c.leases = append(c.leases, opts...); return nil })
}

// WithRetry makes Do run fn again if an earlier attempt has left its outcome unknown. The effect
// may then happen twice: use it if the effect is idempotent, or if its receiver refuses older
// tokens. An error marked with NotDone says nothing about the earlier attempt, so the outcome stays
// unknown. Default: ErrOutcomeUnknown.
func WithRetry() DoOption {
	return option(func(c *config) error { c.retry = true; return nil })
}

// WithLookup makes Do call lookup if an earlier attempt has left its outcome unknown. lookup finds
// out at the receiver of the effect whether it happened, and must not repeat it. Do takes its
// results for those of the earlier attempt:
//
//   - a result and nil: the effect happened. The result is recorded and returned.
//   - an error marked with NotDone: it did not happen, so Do runs fn.
//   - an error marked with Failed: it failed permanently, which is recorded and returned.
//   - another error: the outcome stays unknown. Do returns it in an *UnknownError.
//
// "It did not happen" must stay true, although the process of the earlier attempt may continue: see
// Paused processes above. T must be the result type of Do. Default: ErrOutcomeUnknown.
func WithLookup[T any](lookup func(ctx context.Context, l *pglock.Lease, s Started) (T, error)) DoOption {
	return option(func(c *config) error {
		c.lookup = lookup
		return errs.Require("once", lookup != nil, "WithLookup: the function is nil: must be set")
	})
}

func newConfig[O any](opts []O, apply func(O, *config) error) (config, error) {
	c := config{schema: schema.Default, retention: defaultRetention}
	if err := errs.ApplyBy("once", &c, opts, apply); err != nil {
		return c, err
	}
	return c, errs.Require("once", !c.retry || c.lookup == nil, "WithRetry and WithLookup: conflict: use one of them")
}
