package leasetable

import (
	"cmp"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/internal/schema"
)

// Option configures a Client. Each LeaseOption is an Option too: given to Open,
// it becomes the default of that client's leases.
type Option interface {
	applyClient(*clientConfig) error
}

// LeaseOption configures one lease.
type LeaseOption interface {
	Option
	applyLease(*leaseConfig) error
}

type clientConfig struct {
	schema    string
	maxConns  int
	retention time.Duration // 0: nothing is pruned
	pollOnly  bool
	listener  *pgx.ConnConfig // nil: as the pool's
	logger    *slog.Logger
	lease     leaseConfig

	pruneEvery time.Duration // for tests

	// For tests: calls in a statement at most, and the statement for many also for one.
	batch      int
	forceBatch bool
}

// leaseConfig holds what was asked for; zero durations are resolved by check.
type leaseConfig struct {
	ttl        time.Duration
	margin     time.Duration
	marginSet  bool
	renewEvery time.Duration
	noRenewal  bool
	holder     string
	labels     string // JSON
	barging    bool
}

const (
	defaultTTL      = 30 * time.Second
	minTTL          = 10 * time.Millisecond
	maxTTL          = 10 * 365 * 24 * time.Hour
	maxMargin       = 5 * time.Second // of the default margin
	defaultMaxConns = 4
	minMaxConns     = 2
	maxHolder       = 512

	defaultRetention = 24 * time.Hour
	minRetention     = time.Minute
	maxLabels        = 16 << 10
)

type clientOption func(*clientConfig) error

func (o clientOption) applyClient(c *clientConfig) error { return o(c) }

type leaseOption func(*leaseConfig) error

func (o leaseOption) applyClient(c *clientConfig) error { return o(&c.lease) }
func (o leaseOption) applyLease(c *leaseConfig) error   { return o(c) }

// WithSchema names the schema that holds the tables. Default "pglock".
func WithSchema(name string) Option {
	return clientOption(func(c *clientConfig) error {
		c.schema = name
		return schema.Validate(name)
	})
}

// WithMaxConns bounds the client's own connections, 2 at least: one of them is
// kept for renewals, which take one more while another hangs. They are opened as
// needed. The one that listens for notifications, from the first wait on, comes on top.
// Default 4.
func WithMaxConns(n int) Option {
	return clientOption(func(c *clientConfig) error {
		if n < minMaxConns {
			return invalidOption("%d connections, the least is %d: one is kept for renewals", n, minMaxConns)
		}
		c.maxConns = n
		return nil
	})
}

// WithLogger has failed renewals, losses and failed clean-ups logged. Default: none
// of it is; a loss is always told by the lease itself.
func WithLogger(l *slog.Logger) Option {
	return clientOption(func(c *clientConfig) error {
		if l == nil {
			return invalidOption("the logger is nil")
		}
		c.logger = l
		return nil
	})
}

// WithRetention has the rows of names deleted that nobody has held for that long, a minute
// at least. One client at a time does it, every quarter of that time, an hour at most.
// Default 24 h.
func WithRetention(d time.Duration) Option {
	return clientOption(func(c *clientConfig) error {
		if d < minRetention {
			return invalidOption("a retention of %v, the least is %v", d, minRetention)
		}
		c.retention = d
		return nil
	})
}

// WithoutPruning keeps the rows of all names ever granted, unless Prune is called.
func WithoutPruning() Option {
	return clientOption(func(c *clientConfig) error { c.retention = 0; return nil })
}

// WithPollOnly has waiters ask again and again, instead of a connection listen for
// notifications: for poolers in transaction mode, and servers that have none. A lock is
// passed on up to 400 ms later then. Default: listen, and poll where nothing is notified, which is
// found out by trying.
func WithPollOnly() Option {
	return clientOption(func(c *clientConfig) error { c.pollOnly = true; return nil })
}

// WithListener gives the listening connection a connection string of its own, a URL or
// keywords and values: one that leads to the same database past a pooler. Default: the
// pool's.
func WithListener(connString string) Option {
	return clientOption(func(c *clientConfig) (err error) {
		if c.listener, err = pgx.ParseConfig(connString); err != nil {
			return invalidOption("the listener's connection string: %v", err)
		}
		return nil
	})
}

// WithBarging lets a caller overtake those who wait: a lock that is free is granted
// without regard to the queue. Default: first come, first served.
func WithBarging() LeaseOption {
	return leaseOption(func(c *leaseConfig) error { c.barging = true; return nil })
}

// WithTTL sets how long a grant lasts when it isn't renewed, 10 ms to 10 years.
// It is how long others wait after a holder's death, and, less the safety
// margin, how long a holder can go on without the server. Default 30 s.
func WithTTL(d time.Duration) LeaseOption {
	return leaseOption(func(c *leaseConfig) error {
		if d < minTTL || d > maxTTL {
			return invalidOption("a TTL of %v, it must be from %v to %v", d, minTTL, maxTTL)
		}
		c.ttl = d
		return nil
	})
}

// WithSafetyMargin sets how long before the server's expiry the holder stops
// trusting the lease: room for clocks that run at different rates and for the
// holder's work to stop. It must be below the TTL. Default a tenth of the TTL, 5 s at most.
func WithSafetyMargin(d time.Duration) LeaseOption {
	return leaseOption(func(c *leaseConfig) error {
		if d < 0 {
			return invalidOption("a safety margin of %v, it can't be negative", d)
		}
		c.margin, c.marginSet = d, true
		return nil
	})
}

// WithRenewEvery sets the time between renewals. It must be below the TTL less
// the safety margin. Default a third of the TTL, or half of the trusted time if that is less.
func WithRenewEvery(d time.Duration) LeaseOption {
	return leaseOption(func(c *leaseConfig) error {
		if d <= 0 {
			return invalidOption("renewal every %v, it must be positive", d)
		}
		c.renewEvery, c.noRenewal = d, false
		return nil
	})
}

// WithoutRenewal lets the lease end after its TTL, unless Ensure extends it.
func WithoutRenewal() LeaseOption {
	return leaseOption(func(c *leaseConfig) error {
		c.renewEvery, c.noRenewal = 0, true
		return nil
	})
}

// WithHolder sets the holder's name, as others see it: 1 to 512 bytes of UTF-8
// without NUL. It tells people who holds a lock and plays no part in who may.
// Default: host name, process id and a random part.
func WithHolder(name string) LeaseOption {
	return leaseOption(func(c *leaseConfig) error {
		if name == "" || len(name) > maxHolder || !storable(name) {
			return invalidOption("holder %.64q, it must be 1 to %d bytes of UTF-8 without NUL", name, maxHolder)
		}
		c.holder = name
		return nil
	})
}

// WithLabels stores labels with the grant, for people and tools that look at the
// table; 16 KiB at most, as JSON. Default none.
func WithLabels(labels map[string]string) LeaseOption {
	return leaseOption(func(c *leaseConfig) error {
		for k, v := range labels {
			if !storable(k) || !storable(v) {
				return invalidOption("label %.64q is not UTF-8 without NUL", k)
			}
		}
		text, err := json.Marshal(labels)
		if err != nil {
			return invalidOption("labels: %v", err)
		}
		if len(text) > maxLabels {
			return invalidOption("%d bytes of labels, the limit is %d", len(text), maxLabels)
		}
		c.labels = string(text)
		if labels == nil {
			c.labels = "{}"
		}
		return nil
	})
}

func newClientConfig(opts []Option) (clientConfig, error) {
	c := clientConfig{
		schema:    schema.Default,
		maxConns:  defaultMaxConns,
		retention: defaultRetention,
		logger:    slog.New(slog.DiscardHandler),
		lease:     leaseConfig{ttl: defaultTTL, labels: "{}", holder: defaultHolder()},
	}
	for _, o := range opts {
		if err := o.applyClient(&c); err != nil {
			return c, err
		}
	}
	if c.pollOnly && c.listener != nil {
		return c, invalidOption("a listener's connection string, and polling only")
	}
	_, err := c.lease.check()
	return c, err
}

// with returns the client's defaults with a lease's own options applied.
func (c leaseConfig) with(opts []LeaseOption) (leaseConfig, error) {
	for _, o := range opts {
		if err := o.applyLease(&c); err != nil {
			return c, err
		}
	}
	return c.check()
}

// check resolves the defaults that depend on the TTL, and refuses what conflicts.
func (c leaseConfig) check() (leaseConfig, error) {
	if !c.marginSet {
		c.margin = min(c.ttl/10, maxMargin)
	}
	if c.margin >= c.ttl {
		return c, invalidOption("a safety margin of %v with a TTL of %v: the margin must be shorter", c.margin, c.ttl)
	}
	if c.noRenewal {
		return c, nil
	}
	c.renewEvery = cmp.Or(c.renewEvery, min(c.ttl/3, (c.ttl-c.margin)/2))
	if trusted := c.ttl - c.margin; c.renewEvery >= trusted {
		return c, invalidOption("renewal every %v, but a lease of %v with a margin of %v is trusted for %v only",
			c.renewEvery, c.ttl, c.margin, trusted)
	}
	return c, nil
}

// defaultHolder tells people which process holds a lock.
func defaultHolder() string {
	host, err := os.Hostname()
	if err != nil || !storable(host) {
		host = "unknown"
	}
	return fmt.Sprintf("%.200s:%d:%.6s", host, os.Getpid(), rand.Text())
}
