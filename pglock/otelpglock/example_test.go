package otelpglock_test

import (
	"context"
	"fmt"
	"log"
	"strings"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/otelpglock"
)

// Locks of accounts share one group. A reader stands for the exporter of a real program.
func Example() {
	ctx := context.Background()
	pool, stop := locktest.ExamplePool() // a pool on the application's database
	defer stop()
	reader := sdkmetric.NewManualReader()
	meters := sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))

	observer, err := otelpglock.New(otelpglock.WithMeterProvider(meters), otelpglock.WithGroup(func(name string) string {
		group, _, _ := strings.Cut(name, ":")
		return group
	}))
	if err != nil {
		log.Fatal(err)
	}
	client, err := pglock.Open(ctx, pool, pglock.WithObserver(observer))
	if err != nil {
		log.Fatal(err)
	}
	for _, name := range []string{"account:17", "account:18"} {
		if err := client.Do(ctx, name, func(context.Context, *pglock.Lease) error { return nil }); err != nil {
			log.Fatal(err)
		}
	}
	if err := client.Close(ctx); err != nil { // waits for the events
		log.Fatal(err)
	}

	var all metricdata.ResourceMetrics
	if err := reader.Collect(ctx, &all); err != nil {
		log.Fatal(err)
	}
	for _, m := range all.ScopeMetrics[0].Metrics {
		if m.Name != "pglock.acquire.duration" {
			continue
		}
		for _, p := range m.Data.(metricdata.Histogram[float64]).DataPoints {
			group, _ := p.Attributes.Value("pglock.group")
			outcome, _ := p.Attributes.Value("pglock.outcome")
			fmt.Println(m.Name, group.AsString(), outcome.AsString(), p.Count)
		}
	}
	// Output:
	// pglock.acquire.duration account granted 2
}
