package pglock

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/quiet"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/leasetable"
	"github.com/pglock/pglock-go/pglock/internal/backend"
	"github.com/pglock/pglock-go/pglock/observe"
)

// WithObserver calls the functions of h with the client's events. Several observers are called one
// after the other.
func WithObserver(h observe.Hooks) Option {
	return clientOption(func(c *clientConfig) error {
		c.observers = append(c.observers, h)
		return nil
	})
}

// events raises the events of a client, on the goroutine where they happen.
type events struct {
	logger    *slog.Logger
	log       observe.Hooks
	observers []observe.Hooks
}

// on reports whether events without a failure are received by an observer or the debug log.
func (e *events) on() bool { return len(e.observers) > 0 || e.debug() }

func (e *events) debug() bool { return e.logger.Enabled(context.Background(), slog.LevelDebug) }

// now returns the time, or the zero time unless events are on.
func (e *events) now() time.Time {
	if !e.on() {
		return time.Time{}
	}
	return time.Now()
}

// since returns the time since began, a result of now.
func since(began time.Time) time.Duration {
	if began.IsZero() {
		return 0
	}
	return time.Since(began)
}

// each calls do for every observer that wants an event with that error. The locks of the pruner,
// of the last ticks and of newest calls, which are not the application's, raise no events.
func (e *events) each(name string, failure error, do func(*observe.Hooks)) {
	if name == backend.PruneLock || strings.HasPrefix(name, schema.LastTick) || strings.HasPrefix(name, newestPrefix) {
		return
	}
	if failure != nil || e.debug() {
		e.observe(&e.log, do)
	}
	for i := range e.observers {
		e.observe(&e.observers[i], do)
	}
}

func (e *events) observe(h *observe.Hooks, do func(*observe.Hooks)) {
	defer quiet.End(e.logger)
	do(h)
}

func call[E any](ctx context.Context, hook func(context.Context, E), ev E) {
	if hook != nil {
		hook(ctx, ev)
	}
}

// eachName calls each for every name of the lease.
func (e *events) eachName(l *Lease, failure error, do func(h *observe.Hooks, name string)) {
	for i := range l.count() {
		e.each(l.nameAt(i), failure, func(h *observe.Hooks) { do(h, l.nameAt(i)) })
	}
}

func (e *events) wait(ctx context.Context, ev observe.WaitEvent) {
	ctx = context.WithoutCancel(ctx)
	e.each(ev.Name, nil, func(h *observe.Hooks) { call(ctx, h.Wait, ev) })
}

// acquired raises the AcquireEvent of a, for each of its names. l is nil unless the lock was
// granted.
func (e *events) acquired(ctx context.Context, a *acquisition, l *Lease, err error) {
	if !e.on() {
		return
	}
	ev := observe.AcquireEvent{
		Together: len(a.cfg.names), Try: a.facts.try, Outcome: outcomeOf(err), Err: err, Holder: a.cfg.holder,
		Began: a.began, Waited: time.Since(a.began), Attempts: a.facts.attempts,
		Queued: a.facts.queued, Ahead: a.facts.ahead, HandedOff: a.facts.handedOff, Blocker: a.facts.blocker,
	}
	for _, ev.Name = range a.names() {
		e.acquireEnds(ctx, ev, l)
	}
}

// adopted raises the AcquireEvent of an Adopt that began at that time, a result of now.
func (e *events) adopted(ctx context.Context, l *Lease, began time.Time) {
	e.acquireEnds(ctx, observe.AcquireEvent{
		Name: l.fence.Name, Outcome: observe.OutcomeGranted, Holder: l.cfg.holder, Began: began, Waited: since(began), Adopted: true,
	}, l)
}

// acquireEnds raises an AcquireEvent on this goroutine. l is nil unless the lock was granted.
func (e *events) acquireEnds(ctx context.Context, ev observe.AcquireEvent, l *Lease) {
	if l != nil {
		ev.Token = l.fence.Token
	}
	ctx = context.WithoutCancel(ctx)
	e.each(ev.Name, nil, func(h *observe.Hooks) { call(ctx, h.Acquire, ev) })
}

func (e *events) handedOff(l *Lease, to *leasetable.Request, token fencing.Token) {
	e.each(l.fence.Name, nil, func(h *observe.Hooks) {
		ev := observe.HandoffEvent{Name: l.fence.Name, Released: l.fence.Token, Token: token, Holder: to.Holder}
		call(l.values(), h.Handoff, ev)
	})
}

// share returns the part of l's TTL that remains, or 0 unless events are on.
func (e *events) share(l *Lease) float64 {
	if !e.on() {
		return 0
	}
	return float64(time.Until(l.Deadline())+l.cfg.margin) / float64(l.cfg.ttl)
}

// renewed raises a RenewalEvent, unless the lease was released meanwhile.
func (e *events) renewed(l *Lease, share float64, took time.Duration, err error) {
	if err != nil && errors.Is(l.Err(), ErrReleased) {
		return
	}
	e.eachName(l, err, func(h *observe.Hooks, name string) {
		ev := observe.RenewalEvent{Name: name, Token: l.fence.Token, TTLRemaining: share, Duration: took, Err: err}
		call(l.values(), h.Renewal, ev)
	})
}

// lost raises a LossEvent. expired reports that the deadline has passed.
func (e *events) lost(l *Lease, expired bool, err *LostError) {
	reason := observe.LossEnded
	switch {
	case errors.Is(err, ErrRevoked):
		reason = observe.LossRevoked
	case errors.Is(err, errMaxHold):
		reason = observe.LossMaxHold
	case expired:
		reason = observe.LossExpired
	}
	e.eachName(l, err, func(h *observe.Hooks, name string) {
		ev := observe.LossEvent{
			Name: name, Token: l.fence.Token, Holder: l.cfg.holder,
			Reason: reason, Held: time.Since(l.since), Err: err,
		}
		call(l.values(), h.Loss, ev)
	})
}

// upgraded raises the ReleaseEvent of the reader and the AcquireEvent of the writer, for a
// TryUpgrade that began at that time.
func (e *events) upgraded(ctx context.Context, reader, writer *Lease, began time.Time) {
	e.releaseEnds(reader, began, observe.ReleaseEvent{})
	e.acquireEnds(ctx, observe.AcquireEvent{
		Name: writer.fence.Name, Try: true, Outcome: observe.OutcomeGranted, Holder: writer.cfg.holder,
		Began: began, Waited: time.Since(began), Attempts: 1, Blocker: reader.fence.Token,
	}, writer)
}

// releaseEnds raises ev with the facts of l, whose release began at that time.
func (e *events) releaseEnds(l *Lease, began time.Time, ev observe.ReleaseEvent) {
	if ev.Err == nil && !e.on() {
		return
	}
	ev.Token, ev.Holder = l.fence.Token, l.cfg.holder
	ev.Held, ev.Duration = began.Sub(l.since), time.Since(began)
	e.eachName(l, ev.Err, func(h *observe.Hooks, name string) {
		ev.Name = name
		call(l.values(), h.Release, ev)
	})
}

func (e *events) batch(op observe.Operation, size int, took time.Duration, err error) {
	e.each("", err, func(h *observe.Hooks) {
		ev := observe.BatchEvent{Operation: op, Size: size, Duration: took, Err: err}
		call(context.Background(), h.Batch, ev)
	})
}

// Report raises e for the client's observers, for packages on top of a Client. If e has an Err and
// no Outcome, its outcome is that of an acquire with it.
func (c *Client) Report(ctx context.Context, e observe.ResultEvent) {
	if !c.events.on() {
		return
	}
	if e.Outcome == "" && e.Err != nil {
		e.Outcome = outcomeOf(e.Err)
	}
	ctx = context.WithoutCancel(ctx)
	c.events.each(e.Name, nil, func(h *observe.Hooks) { call(ctx, h.Result, e) })
}

// reportRefused returns err, the result of what may write, and reports it if it is of these kinds.
func (c *Client) reportRefused(ctx context.Context, f fencing.Fence, err error, outcome observe.Outcome, kinds ...error) error {
	if err != nil && c.events.on() {
		why := fencing.Explain(err)
		if slices.ContainsFunc(kinds, func(kind error) bool { return errors.Is(why, kind) }) {
			c.Report(ctx, observe.ResultEvent{Kind: observe.KindGuard, Name: f.Name, Token: f.Token, Outcome: outcome, Err: err})
		}
	}
	return err
}

// values returns a context with the values of the context that was passed to Acquire.
func (l *Lease) values() context.Context { return context.WithoutCancel(l.ctx) }

func outcomeOf(err error) observe.Outcome {
	var wait *WaitError
	var busy *BusyError
	switch {
	case err == nil:
		return observe.OutcomeGranted
	case errors.As(err, &wait): // the cause counts, and not the last obstacle
		err = wait.Cause
	case errors.As(err, &busy):
		return observe.OutcomeBusy
	}
	switch {
	case errors.Is(err, ErrClosed):
		return observe.OutcomeClosed
	case errors.Is(err, ErrUnavailable):
		return observe.OutcomeUnavailable
	case errors.Is(err, ErrTimeout), errors.Is(err, context.DeadlineExceeded):
		return observe.OutcomeTimeout
	case errors.Is(err, context.Canceled):
		return observe.OutcomeCanceled
	}
	return observe.OutcomeFailed
}
