package otelpglock

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/pglock/pglock-go/pglock/observe"
)

// The counters that start at 0.
var (
	startedReasons  = []observe.LossReason{observe.LossExpired, observe.LossMaxHold, observe.LossRevoked, observe.LossEnded}
	startedOutcomes = map[observe.Kind][]observe.Outcome{
		observe.KindGuard:    {observe.OutcomeStale, observe.OutcomeUnfenced},
		observe.KindOnce:     {observe.OutcomeUnknown},
		observe.KindTerm:     {observe.OutcomeBegan, observe.OutcomeLost},
		observe.KindTick:     {observe.OutcomeDone, observe.OutcomeFailed, observe.OutcomeMissed, observe.OutcomeAbandoned},
		observe.KindListener: {observe.OutcomeLost, observe.OutcomeFailed},
	}
)

func (o *observer) startGroup(ctx context.Context, group attribute.KeyValue) {
	if _, started := o.groups.LoadOrStore(group.Value.AsString(), true); started {
		return
	}
	for _, reason := range startedReasons {
		o.leaseLosses.Add(ctx, 0, metric.WithAttributes(group, keyLossReason.String(string(reason))))
	}
	o.startResults(ctx, observe.KindGuard, group)
	o.startResults(ctx, observe.KindOnce, group)
}

func (o *observer) startResults(ctx context.Context, kind observe.Kind, subject ...attribute.KeyValue) {
	for _, outcome := range startedOutcomes[kind] {
		o.results.Add(ctx, 0, withResult(kind, outcome, subject))
	}
}

func withResult(kind observe.Kind, outcome observe.Outcome, subject []attribute.KeyValue) metric.MeasurementOption {
	return metric.WithAttributes(append([]attribute.KeyValue{keyKind.String(string(kind)), keyOutcome.String(string(outcome))}, subject...)...)
}

func (o *observer) result(ctx context.Context, e observe.ResultEvent) {
	subject := o.inGroup(e.Name)
	switch {
	case e.Kind == observe.KindListener:
		subject = nil
	case (e.Kind == observe.KindTerm || e.Kind == observe.KindTick) && !o.hideNames:
		subject = append(subject[:0], keyName.String(e.Name))
	}
	if e.Outcome == "" {
		o.startResults(ctx, e.Kind, subject...)
	} else {
		with := withResult(e.Kind, e.Outcome, subject)
		o.results.Add(ctx, 1, with)
		if e.Duration > 0 && e.Outcome != observe.OutcomeBegan {
			o.resultDuration.Record(ctx, e.Duration.Seconds(), with)
		}
	}
	with, now := metric.WithAttributes(subject...), time.Now()
	change := map[observe.Outcome]int64{observe.OutcomeBegan: 1, observe.OutcomeEnded: -1, observe.OutcomeLost: -1}[e.Outcome]
	switch {
	case e.Kind == observe.KindTerm:
		o.leaderActive.Add(ctx, change, with)
	case e.Kind == observe.KindListener:
		o.listenerActive.Add(ctx, change, with)
	case e.Kind == observe.KindTick && e.Outcome == "":
		o.tickNext.Record(ctx, unix(now.Add(e.Duration)), with)
	case e.Kind == observe.KindTick && e.Outcome == observe.OutcomeBegan:
		o.tickLateness.Record(ctx, e.Duration.Seconds(), with)
	case e.Kind == observe.KindTick && e.Outcome == observe.OutcomeDone:
		o.tickLastSuccess.Record(ctx, unix(now), with)
	}
}

// unix returns t in seconds since 1970, or 0 if it is earlier.
func unix(t time.Time) float64 { return max(0, float64(t.UnixMicro())/1e6) }
