package pglock

import (
	"log/slog"
	"time"

	"github.com/pglock/pglock-go/leasetable"
)

// Option configures a Client. Each LeaseOption is an Option too: given to Open,
// it becomes the default of that client's leases.
type Option = leasetable.Option

// LeaseOption configures one lease.
type LeaseOption = leasetable.LeaseOption

// WithSchema names the schema that holds the tables. Default "pglock".
func WithSchema(name string) Option { return leasetable.WithSchema(name) }

// WithMaxConns bounds the client's own connections, 2 at least. Default 4.
func WithMaxConns(n int) Option { return leasetable.WithMaxConns(n) }

// WithLogger has failed renewals, losses and failed clean-ups logged. Default: none is.
func WithLogger(l *slog.Logger) Option { return leasetable.WithLogger(l) }

// WithTTL sets how long a grant lasts when it isn't renewed, 10 ms to 10 years.
// Default 30 s.
func WithTTL(d time.Duration) LeaseOption { return leasetable.WithTTL(d) }

// WithSafetyMargin sets how long before the server's expiry the holder stops
// trusting the lease. Default a tenth of the TTL, 5 s at most.
func WithSafetyMargin(d time.Duration) LeaseOption { return leasetable.WithSafetyMargin(d) }

// WithRenewEvery sets the time between renewals. Default a third of the TTL, or
// half of the trusted time if that is less.
func WithRenewEvery(d time.Duration) LeaseOption { return leasetable.WithRenewEvery(d) }

// WithoutRenewal lets the lease end after its TTL, unless Ensure extends it.
func WithoutRenewal() LeaseOption { return leasetable.WithoutRenewal() }

// WithHolder sets the holder's name, as others see it. Default: host name,
// process id and a random part.
func WithHolder(name string) LeaseOption { return leasetable.WithHolder(name) }

// WithLabels stores labels with the grant, 16 KiB at most as JSON. Default none.
func WithLabels(labels map[string]string) LeaseOption { return leasetable.WithLabels(labels) }
