package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"sync/atomic"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/pglock/pglock-go/internal/bench/trial"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/otelpglock"
)

// The configurations of B11.
const (
	observerOff   = "no observer"
	observerCount = "an observer that counts"
	observerLog   = "log at Debug, discarded"
	observerOTel  = "otelpglock, metrics and traces"
)

// observerRow is B11: what observers cost, by a lone goroutine and by many.
func observerRow() trial.Row {
	r := &pairLab{settings: livelySettings}
	row := trial.Row{
		Number:  "B11",
		What:    fmt.Sprintf("acquire+release with observers, one goroutine and %d", distinctCrowd),
		Prepare: r.prepare,
	}
	crowd := func(kind string) string { return fmt.Sprintf("%s, %d goroutines", kind, distinctCrowd) }
	for _, kind := range []string{observerOff, observerCount, observerLog, observerOTel} {
		role := trial.Ours
		if kind == observerOff {
			role = trial.Floor
		}
		row.Subjects = append(row.Subjects,
			trial.Subject{Name: kind, Role: role, Open: func(ctx context.Context, s *trial.Scope) (trial.Meter, error) {
				client, err := r.observed(ctx, s, kind)
				return newPairMeter(&r.lab, client, inTurn()), err
			}},
			trial.Subject{Name: crowd(kind), Role: role, Throughput: true, Open: func(ctx context.Context, s *trial.Scope) (trial.Meter, error) {
				client, err := r.observed(ctx, s, kind)
				return &pairsMeter{goroutines: distinctCrowd, pair: func(ctx context.Context, name string) error {
					l, err := client.Acquire(ctx, name)
					if err != nil {
						return err
					}
					return l.Release(ctx)
				}}, err
			}})
	}
	target := func(kind string, latency, rate float64) {
		row.Targets = append(row.Targets,
			trial.Target{
				What: "p50 of a pair with " + kind, Rule: trial.AtMost(latency),
				Ours: []trial.Ref{{Subject: kind, Figure: "pair p50"}}, Against: trial.Ref{Subject: observerOff, Figure: "pair p50"},
			},
			trial.Target{
				What: "pairs a second with " + crowd(kind), Rule: trial.AtLeast(rate),
				Ours: []trial.Ref{{Subject: crowd(kind), Figure: "pairs"}}, Against: trial.Ref{Subject: crowd(observerOff), Figure: "pairs"},
			})
	}
	target(observerCount, 1.05, 0.9)
	target(observerLog, 1.1, 0.8)
	target(observerOTel, 1.1, 0.7)
	return row
}

// observed opens a client with a configuration of B11.
func (r *pairLab) observed(ctx context.Context, s *trial.Scope, kind string) (*pglock.Client, error) {
	var opts []pglock.Option
	switch kind {
	case observerCount:
		opts = append(opts, pglock.WithObserver(&counter{}))
	case observerLog:
		opts = append(opts, pglock.WithLogger(slog.New(slog.NewJSONHandler(io.Discard, &slog.HandlerOptions{Level: slog.LevelDebug}))))
	case observerOTel:
		tracers := sdktrace.NewTracerProvider(sdktrace.WithBatcher(dropped{}))
		s.Defer(func() error { return tracers.Shutdown(context.Background()) })
		o, err := otelpglock.New(otelpglock.WithTracerProvider(tracers),
			otelpglock.WithMeterProvider(sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewManualReader()))))
		if err != nil {
			return nil, err
		}
		opts = append(opts, pglock.WithObserver(o))
	}
	return r.client(ctx, s, "pglock", opts...)
}

// counter counts the events that most dashboards need.
type counter struct {
	pglock.NopObserver
	acquired, released, renewed, lost atomic.Int64
}

func (c *counter) ObserveAcquire(context.Context, pglock.AcquireEvent) { c.acquired.Add(1) }
func (c *counter) ObserveRelease(context.Context, pglock.ReleaseEvent) { c.released.Add(1) }
func (c *counter) ObserveRenewal(context.Context, pglock.RenewalEvent) { c.renewed.Add(1) }
func (c *counter) ObserveLoss(context.Context, pglock.LossEvent)       { c.lost.Add(1) }

// dropped is an exporter that drops the spans.
type dropped struct{}

func (dropped) ExportSpans(context.Context, []sdktrace.ReadOnlySpan) error { return nil }
func (dropped) Shutdown(context.Context) error                             { return nil }
