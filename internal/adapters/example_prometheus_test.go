package adapters_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http/httptest"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/observe"
)

// prometheusHooks are all that a service needs for Prometheus without OpenTelemetry. Lock names are no
// labels, because they may be too many.
func prometheusHooks(r prometheus.Registerer) observe.Hooks {
	acquired := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "pglock_acquire_seconds", Help: "Duration of acquiring a lock, with the wait.", Buckets: prometheus.ExponentialBuckets(0.001, 4, 9),
	}, []string{"outcome"})
	waiting := prometheus.NewGauge(prometheus.GaugeOpts{Name: "pglock_waiting", Help: "Calls that wait for a lock."})
	held := prometheus.NewGauge(prometheus.GaugeOpts{Name: "pglock_leases", Help: "Leases that are held."})
	lost := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "pglock_leases_lost_total", Help: "Leases that were lost."}, []string{"reason"})
	remaining := prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "pglock_renewal_remaining_ratio", Help: "Part of the TTL that remained at a renewal.", Buckets: prometheus.LinearBuckets(0.1, 0.1, 9),
	})
	r.MustRegister(acquired, waiting, held, lost, remaining)
	return observe.Hooks{
		Wait: func(context.Context, observe.WaitEvent) { waiting.Inc() },
		Acquire: func(_ context.Context, e observe.AcquireEvent) {
			acquired.WithLabelValues(string(e.Outcome)).Observe(e.Waited.Seconds())
			if e.Queued {
				waiting.Dec()
			}
			if e.Outcome == observe.OutcomeGranted {
				held.Inc()
			}
		},
		Renewal: func(_ context.Context, e observe.RenewalEvent) { remaining.Observe(e.TTLRemaining) },
		Loss: func(_ context.Context, e observe.LossEvent) {
			lost.WithLabelValues(string(e.Reason)).Inc()
			held.Dec()
		},
		Release: func(_ context.Context, e observe.ReleaseEvent) {
			if !e.Again { // an earlier release of this lease was counted
				held.Dec()
			}
		},
	}
}

// A few hooks give Prometheus the figures of a service. The last request is what Prometheus
// sends.
func Example_prometheus() {
	ctx := context.Background()
	pool, stop := locktest.ExamplePool() // a pool on the application's database
	defer stop()

	registry := prometheus.NewRegistry()
	client, err := pglock.Open(ctx, pool, pglock.WithObserver(prometheusHooks(registry)))
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close(ctx)
	server := httptest.NewServer(promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	defer server.Close()

	lease, err := client.Acquire(ctx, "account:17")
	if err != nil {
		log.Fatal(err)
	}
	if _, err := client.TryAcquire(ctx, "account:17"); err == nil {
		log.Fatal("granted twice")
	}

	answer, err := server.Client().Get(server.URL)
	if err != nil {
		log.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		log.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "pglock_acquire_seconds_count") || strings.HasPrefix(line, "pglock_leases ") {
			fmt.Print(line)
		}
	}
	if err := lease.Release(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// pglock_acquire_seconds_count{outcome="busy"} 1
	// pglock_acquire_seconds_count{outcome="granted"} 1
	// pglock_leases 1
}
