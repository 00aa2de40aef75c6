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
		if p == nil {
			return invalidOption("the meter provider is nil: must be set")
		}
		c.meters = p
		return nil
	}
}

// WithTracerProvider sets the provider of the tracer, which by default is the global one.
func WithTracerProvider(p trace.TracerProvider) Option {
	return func(c *config) error {
		if p == nil {
			return invalidOption("the tracer provider is nil: must be set")
		}
		c.tracers = p
		return nil
	}
}

// WithGroup sets the function that maps a lock's name to its group, such as "account" for
// "account:17". It must be fast, safe for concurrent use, and have few results, since each metric
// keeps a value for each of them. (By default OpenTelemetry's SDK keeps 2,000 combinations of
// attributes for each metric, and counts all others as one, otel.metric.overflow.) Without it, all
// names are in the group "default".
func WithGroup(group func(name string) string) Option {
	return func(c *config) error {
		if group == nil {
			return invalidOption("the group function is nil: must be set")
		}
		c.group = group
		return nil
	}
}

// WithoutNames keeps lock names, holders and error texts out of spans, and the names of elections
// and jobs out of metrics, which then have their groups instead.
func WithoutNames() Option {
	return func(c *config) error { c.hideNames = true; return nil }
}

func invalidOption(format string, args ...any) error {
	return fmt.Errorf("otelpglock: %w: "+format, append([]any{pglock.ErrInvalidOption}, args...)...)
}
