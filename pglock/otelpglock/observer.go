package otelpglock

import (
	"context"
	"fmt"
	"sync"

	"github.com/pglock/pglock-go/pglock/observe"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
	"go.opentelemetry.io/otel/trace"
)

const scope = "github.com/pglock/pglock-go/pglock/otelpglock"

type observer struct {
	*instruments
	config
	tracer trace.Tracer
	groups sync.Map // the groups whose counters were started
}

// New returns the hooks of one or several clients, for pglock.WithObserver. It fails with
// pglock.ErrInvalidOption, or if the meter provider refuses an instrument.
func New(opts ...Option) (observe.Hooks, error) {
	c, err := newConfig(opts)
	if err != nil {
		return observe.Hooks{}, err
	}
	i, err := newInstruments(c.meters.Meter(scope, metric.WithSchemaURL(semconv.SchemaURL)))
	if err != nil {
		return observe.Hooks{}, fmt.Errorf("otelpglock: create the instruments: %w", err)
	}
	o := &observer{instruments: i, config: c, tracer: c.tracers.Tracer(scope, trace.WithSchemaURL(semconv.SchemaURL))}
	if o.group == nil {
		o.group = func(string) string { return "default" }
		o.startGroup(context.Background(), o.inGroup("")[0])
	}
	o.startResults(context.Background(), observe.KindListener)
	o.listenerActive.Add(context.Background(), 0) // which is all that a client that polls has
	return observe.Hooks{
		Wait: o.wait, Acquire: o.acquire, Handoff: o.handoff, Renewal: o.renewal, Loss: o.loss, Release: o.release, Batch: o.batch,
		Result: o.result,
	}, nil
}

// inGroup returns the attribute with the group of a name, in a slice with capacity for others.
func (o *observer) inGroup(name string) []attribute.KeyValue {
	return append(make([]attribute.KeyValue, 0, 4), keyGroup.String(o.group(name)))
}

func (o *observer) wait(ctx context.Context, e observe.WaitEvent) {
	group := metric.WithAttributes(o.inGroup(e.Name)...)
	o.acquireWaiting.Add(ctx, 1, group)
	o.acquireAhead.Record(ctx, int64(e.Ahead), group)
}

func (o *observer) acquire(ctx context.Context, e observe.AcquireEvent) {
	attributes := o.inGroup(e.Name)
	group := metric.WithAttributes(attributes...)
	o.startGroup(ctx, attributes[0])
	if e.Adopted { // it was acquired in another process
		o.leaseActive.Add(ctx, 1, group)
		return
	}
	attributes = append(attributes, keyOutcome.String(string(e.Outcome)))
	switch e.Outcome {
	case observe.OutcomeGranted, observe.OutcomeBusy:
	case observe.OutcomeFailed:
		attributes = withErrorType(attributes, e.Err)
	default:
		attributes = append(attributes, semconv.ErrorTypeKey.String(string(e.Outcome)))
	}
	ctx = o.span(ctx, e, attributes) // an exemplar leads to it

	o.acquireDuration.Record(ctx, e.Waited.Seconds(), metric.WithAttributes(attributes...))
	o.acquireAttempts.Add(ctx, int64(e.Attempts), group)
	if e.Queued {
		o.acquireWaiting.Add(ctx, -1, group)
	}
	if e.Outcome == observe.OutcomeGranted {
		o.leaseActive.Add(ctx, 1, group)
	}
}

// span records the span of a call with the attributes of the metric, and returns a context with it.
func (o *observer) span(ctx context.Context, e observe.AcquireEvent, attributes []attribute.KeyValue) context.Context {
	ctx, span := o.tracer.Start(ctx, "pglock acquire", trace.WithTimestamp(e.Began), trace.WithAttributes(attributes...))
	defer span.End(trace.WithTimestamp(e.Began.Add(e.Waited)))
	if !span.IsRecording() {
		return ctx
	}
	span.SetAttributes(keyAttempts.Int(e.Attempts), keyQueued.Bool(e.Queued))
	if e.Queued {
		span.SetAttributes(keyAhead.Int(e.Ahead))
	}
	if e.Blocker != 0 {
		span.SetAttributes(keyBlocker.Int64(int64(e.Blocker)))
	}
	if !o.hideNames {
		span.SetAttributes(keyName.String(e.Name), keyHolder.String(e.Holder))
	}
	switch {
	case e.Outcome == observe.OutcomeGranted:
		span.SetAttributes(keyToken.Int64(int64(e.Token)), keyHandedOff.Bool(e.HandedOff))
	case e.Outcome != observe.OutcomeBusy && e.Err != nil:
		text := string(e.Outcome)
		if !o.hideNames {
			text = e.Err.Error()
		}
		span.SetStatus(codes.Error, text)
	}
	return ctx
}

func (o *observer) handoff(ctx context.Context, e observe.HandoffEvent) {
	o.handoffs.Add(ctx, 1, metric.WithAttributes(o.inGroup(e.Name)...))
}

func (o *observer) renewal(ctx context.Context, e observe.RenewalEvent) {
	attributes := o.inGroup(e.Name)
	o.renewalRemaining.Record(ctx, e.TTLRemaining, metric.WithAttributes(attributes...))
	o.renewalDuration.Record(ctx, e.Duration.Seconds(), metric.WithAttributes(withErrorType(attributes, e.Err)...))
}

func (o *observer) loss(ctx context.Context, e observe.LossEvent) {
	attributes := o.inGroup(e.Name)
	o.leaseLosses.Add(ctx, 1, metric.WithAttributes(append(attributes, keyLossReason.String(string(e.Reason)))...))
	o.leaseEnds(ctx, attributes, string(e.Reason), e.Held.Seconds())
}

func (o *observer) release(ctx context.Context, e observe.ReleaseEvent) {
	attributes := o.inGroup(e.Name)
	if e.HandedOver { // it is released in another process
		o.leaseEnds(ctx, attributes, "handed_over", e.Held.Seconds())
		return
	}
	o.releaseDuration.Record(ctx, e.Duration.Seconds(), metric.WithAttributes(withErrorType(attributes, e.Err)...))
	if !e.Again {
		o.leaseEnds(ctx, attributes, "released", e.Held.Seconds())
	}
}

func (o *observer) leaseEnds(ctx context.Context, group []attribute.KeyValue, how string, held float64) {
	o.leaseActive.Add(ctx, -1, metric.WithAttributes(group...))
	o.leaseDuration.Record(ctx, held, metric.WithAttributes(append(group, keyEnd.String(how))...))
}

func (o *observer) batch(ctx context.Context, e observe.BatchEvent) {
	attributes := append(make([]attribute.KeyValue, 0, 2), keyOperation.String(string(e.Operation)))
	o.batchSize.Record(ctx, int64(e.Size), metric.WithAttributes(attributes...))
	o.batchDuration.Record(ctx, e.Duration.Seconds(), metric.WithAttributes(withErrorType(attributes, e.Err)...))
}
