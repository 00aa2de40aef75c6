package otelpglock_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/observe"
	"github.com/pglock/pglock-go/pglock/otelpglock"
)

// telemetry has hooks whose metrics and spans stay in memory.
type telemetry struct {
	observe.Hooks
	t      *testing.T
	reader *sdkmetric.ManualReader
	spans  *tracetest.InMemoryExporter
	tracer *sdktrace.TracerProvider

	mu    sync.Mutex
	waits int // calls that have begun to wait
}

func newTelemetry(t *testing.T, opts ...otelpglock.Option) *telemetry {
	t.Helper()
	m := &telemetry{t: t, reader: sdkmetric.NewManualReader(), spans: tracetest.NewInMemoryExporter()}
	meters := sdkmetric.NewMeterProvider(sdkmetric.WithReader(m.reader))
	m.tracer = sdktrace.NewTracerProvider(sdktrace.WithSyncer(m.spans))
	var err error
	m.Hooks, err = otelpglock.New(append([]otelpglock.Option{otelpglock.WithMeterProvider(meters), otelpglock.WithTracerProvider(m.tracer)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	wait := m.Wait
	m.Wait = func(ctx context.Context, e observe.WaitEvent) { // a test can wait for it
		wait(ctx, e)
		m.mu.Lock()
		defer m.mu.Unlock()
		m.waits++
	}
	return m
}

func (m *telemetry) awaitWaits(n int) {
	m.t.Helper()
	pgtest.Eventually(m.t, "calls wait", func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		return m.waits >= n
	})
}

// open returns a client on tables of its own, whose events go to m. Its holder is "me".
func (m *telemetry) open() *pglock.Client {
	m.t.Helper()
	pool := pgtest.Pool(m.t)
	c := locktest.Open(m.t, pool, pglock.WithSchema(pgtest.Schema(m.t, pool)), pglock.WithObserver(m.Hooks),
		pglock.WithHolder("me"), pglock.WithLogger(nil))
	m.t.Cleanup(func() { _ = c.Close(context.Background()) }) // most tests have closed it
	return c
}

// point is one data point of a metric.
type point struct {
	count uint64  // of a histogram
	value float64 // the sum
}

// metrics returns the points by "name unit kind {attributes}".
func (m *telemetry) metrics() map[string]point {
	m.t.Helper()
	var all metricdata.ResourceMetrics
	if err := m.reader.Collect(m.t.Context(), &all); err != nil {
		m.t.Fatal(err)
	}
	found := map[string]point{}
	for _, scope := range all.ScopeMetrics {
		if scope.Scope.Name != "github.com/pglock/pglock-go/pglock/otelpglock" {
			m.t.Errorf("scope %+v", scope.Scope)
		}
		for _, metric := range scope.Metrics {
			head := metric.Name + " " + metric.Unit + " "
			switch data := metric.Data.(type) {
			case metricdata.Histogram[float64]:
				for _, p := range data.DataPoints {
					found[head+"histogram "+text(p.Attributes)] = point{p.Count, p.Sum}
				}
			case metricdata.Histogram[int64]:
				for _, p := range data.DataPoints {
					found[head+"histogram "+text(p.Attributes)] = point{p.Count, float64(p.Sum)}
				}
			case metricdata.Gauge[float64]:
				for _, p := range data.DataPoints {
					found[head+"gauge "+text(p.Attributes)] = point{0, p.Value}
				}
			case metricdata.Sum[int64]:
				kind := "up-down "
				if data.IsMonotonic {
					kind = "counter "
				}
				for _, p := range data.DataPoints {
					found[head+kind+text(p.Attributes)] = point{0, float64(p.Value)}
				}
			default:
				m.t.Errorf("%s: %T", metric.Name, data)
			}
		}
	}
	return found
}

// text returns attributes in the form {a=1 b=2}.
func text(s attribute.Set) string {
	var parts []string
	for _, kv := range s.ToSlice() {
		parts = append(parts, fmt.Sprintf("%s=%s", kv.Key, kv.Value.String()))
	}
	return "{" + strings.Join(parts, " ") + "}"
}

// started are the counters of a group, and those of all clients, that start at 0.
func started(want map[string]func(p point) bool, groups ...string) map[string]func(p point) bool {
	all := map[string]func(p point) bool{"pglock.listener.active {connection} up-down {}": atLeast(0)}
	for _, outcome := range []string{"lost", "failed"} {
		all["pglock.results {result} counter {pglock.kind=listener pglock.outcome="+outcome+"}"] = atLeast(0)
	}
	for _, group := range groups {
		for _, reason := range []string{"expired", "max_hold", "revoked", "ended"} {
			all["pglock.lease.losses {lease} counter {pglock.group="+group+" pglock.loss.reason="+reason+"}"] = total(0)
		}
		for _, result := range []string{"guard pglock.outcome=stale", "guard pglock.outcome=unfenced", "once pglock.outcome=unknown"} {
			all["pglock.results {result} counter {pglock.group="+group+" pglock.kind="+result+"}"] = total(0)
		}
	}
	maps.Copy(all, want)
	return all
}

// wantMetrics fails the test unless there are exactly these points. A client that waits may have
// a listening connection.
func (m *telemetry) wantMetrics(want map[string]func(p point) bool) {
	m.t.Helper()
	got := m.metrics()
	for _, key := range slices.Sorted(maps.Keys(got)) {
		p := got[key]
		if check, ok := want[key]; ok && !check(p) || !ok && !strings.Contains(key, "listener") {
			m.t.Errorf("%s: %+v, wanted: %v", key, p, ok)
		}
	}
	for key := range want {
		if _, ok := got[key]; !ok {
			m.t.Errorf("%s: missing", key)
		}
	}
}

// Checks of points.
func times(n uint64) func(point) bool {
	return func(p point) bool { return p.count == n && p.value > 0 && p.value < n64(n)*pgtest.Patience.Seconds() }
}
func often(p point) bool { return p.count > 0 && p.value > 0 }
func total(v float64) func(point) bool {
	return func(p point) bool { return p.value == v }
}
func atLeast(v float64) func(point) bool {
	return func(p point) bool { return p.value >= v }
}
func n64(n uint64) float64 { return float64(n) }
