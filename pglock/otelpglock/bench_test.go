package otelpglock_test

import (
	"context"
	"testing"
	"time"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/pglock/pglock-go/pglock/observe"
	"github.com/pglock/pglock-go/pglock/otelpglock"
)

// BenchmarkPair is the processor time that the events of one acquire and one release cost.
func BenchmarkPair(b *testing.B) {
	o, err := otelpglock.New(
		otelpglock.WithMeterProvider(sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewManualReader()))),
		otelpglock.WithTracerProvider(sdktrace.NewTracerProvider()))
	if err != nil {
		b.Fatal(err)
	}
	ctx, began := context.Background(), time.Now()
	b.ReportAllocs()
	for b.Loop() {
		o.Acquire(ctx, observe.AcquireEvent{Name: "n", Token: 1, Outcome: observe.OutcomeGranted, Began: began, Attempts: 1})
		o.Release(ctx, observe.ReleaseEvent{Name: "n", Token: 1})
	}
}
