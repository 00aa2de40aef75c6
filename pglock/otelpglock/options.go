package otelpglock

import (
	"fmt"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/pglock/pglock-go/pglock"
)

// Option is an option of New for the observer that it returns.
type Option func(*config) error

type config struct {
	meters    metric.MeterProvider
	tracers   trace.TracerProvider
	group     func(name string) string
	hideNames bool
}

func newConfig(opts []Option) (config, error) {
	c := config{meters: otel.GetMeterProvider(), tracers: otel.GetTracerProvider()}
	for _, o := range opts {
		if err := o(&c); err != nil {
			return c, err
		}
	}
	return c, nil
}

// WithMeterProvider sets the provider of the instruments, which by default is the global one.
func WithMeterProvider(p metric.MeterProvider) Option {
	return func(c *config) error {
		c.meters = p
		return require(p != nil, "the meter provider")
	}
}

// WithTracerProvider sets the provider of the tracer, which by default is the global one.
func WithTracerProvider(p trace.TracerProvider) Option {
	return func(c *config) error {
		c.tracers = p
		return require(p != nil, "the tracer provider")
	}
}

// WithGroup sets the function that maps a lock's name to its group, such as "account" for
// "account:17". It must be fast, safe for concurrent use, and have few results, since each metric
// keeps a value for each of them. (By default OpenTelemetry's SDK keeps 2,000 combinations of
// attributes for each metric, and counts all others as one, otel.metric.overflow.) Without it, all
// names are in the group "default".
func WithGroup(group func(name string) string) Option {
	return func(c *config) error {
		c.group = group
		return require(group != nil, "the group function")
	}
}

// WithoutNames keeps lock names, holders and error texts out of spans, and the names of elections
// and jobs out of metrics, which then have their groups instead.
func WithoutNames() Option {
	return func(c *config) error { c.hideNames = true; return nil }
}

func require(set bool, what string) error {
	if set {
		return nil
	}
	return fmt.Errorf("otelpglock: %w: %s is nil: must be set", pglock.ErrInvalidOption, what)
}
