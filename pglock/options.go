package pglock

import (
	"cmp"
	"crypto/rand"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/quiet"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/internal/timing"
	"github.com/pglock/pglock-go/leasetable"
	"github.com/pglock/pglock-go/pglock/observe"
)

// Option configures a Client. A LeaseOption that is passed to Open sets the default for the
// client's leases.
type Option interface {
	applyClient(*clientConfig) error
}

// LeaseOption configures the lease of one call.
type LeaseOption interface {
	Option
	applyLease(*leaseConfig) error
}

type clientConfig struct {
	schema    string
	maxConns  int
	retention time.Duration // 0: no pruning
	pollOnly  bool
	standby   bool
	listener  *pgx.ConnConfig // nil: the pool's
	logger    *slog.Logger
	observers []observe.Hooks
	lease     leaseConfig  // as given, since each lease resolves its own defaults
	resolved  *leaseConfig // of leases without options

	policy func(name string) ([]LeaseOption, error) // of WithNamePolicy, or nil

	pruneEvery time.Duration // for tests

	// The tests set the size of batches and of renewals, and batch statements for single
	// operations.
	batch      int
	forceBatch bool
}

// leaseConfig holds the options of a lease. check resolves zero durations, and after that it does
// not change.
type leaseConfig struct {
	ttl        time.Duration
	margin     time.Duration
	marginSet  bool
	renewEvery time.Duration
	noRenewal  bool
	holder     string
	labels     string // JSON
	barging    bool
	maxHold    time.Duration // 0: no limit
	minHold    time.Duration
	lockDelay  time.Duration
	wait       time.Duration // of Acquire, if waitSet
	waitSet    bool
	join       bool
	supersede  bool

	permits leasetable.Permits   // of a semaphore or a readers–writer lock
	names   []string             // of several names, sorted; nil: one name
	each    []leasetable.Permits // of these names; nil: each has one holder
}

const (
	defaultMaxConns = 4
	minMaxConns     = 2
	maxBatch        = 128
	maxHolder       = 512
	maxLabelBytes   = 16 << 10
)

type clientOption func(*clientConfig) error

func (o clientOption) applyClient(c *clientConfig) error { return o(c) }

type leaseOption func(*leaseConfig) error

func (o leaseOption) applyClient(c *clientConfig) error { return o(&c.lease) }
func (o leaseOption) applyLease(c *leaseConfig) error   { return o(c) }

// WithSchema names the schema that holds the tables, by default "pglock".
func WithSchema(name string) Option {
	return clientOption(func(c *clientConfig) error {
		c.schema = name
		return schema.Validate(name)
	})
}

// WithMaxConns limits the client's own connections, which are opened on demand, to n, by default 4
// and at least 2, since one is kept for renewals. Renewals may open one more, and others to replace
// connections that hang. One of them stays open, and the others close when they were idle for 20 to
// 30 s. The listening connection is not counted: it is open while the client waits, watches, or has
// a lease whose ReleaseRequested was called, and for 30 s after that.
func WithMaxConns(n int) Option {
	return clientOption(func(c *clientConfig) error {
		c.maxConns = n
		return require(n >= minMaxConns, "%d connections: too few: must be at least %d, since one is kept for renewals", n, minMaxConns)
	})
}

// WithLogger logs failed renewals, lost leases and failed clean-ups at Warn, and waits, grants and
// releases at Debug, one line each. With nil, nothing is logged. The default is [slog.Default], as
// it is at the time, at Warn. A line whose handler panics is lost.
func WithLogger(l *slog.Logger) Option {
	return clientOption(func(c *clientConfig) error {
		c.logger = l // with nil, quiet.Logger discards
		return nil
	})
}

// WithRetention deletes the rows of names that have been idle for d, at least a minute and by
// default 24 h. One client at a time does so, every quarter of d, or every hour if that is shorter.
// With 0 the client deletes only the queue rows of dead clients, and the others stay until Prune is
// called.
func WithRetention(d time.Duration) Option {
	return clientOption(func(c *clientConfig) error {
		c.retention = d
		return require(d == 0 || d >= timing.MinRetention, "retention %v: too short: must be 0, or at least %v", d, timing.MinRetention)
	})
}

// WithNamePolicy calls policy for each name that is acquired or adopted, before the database is
// contacted. The options of the call follow those that policy returns, so a TTL of the call wins,
// and labels of both are stored. If policy returns an error, the call fails with one that wraps it,
// so a program can refuse names that no team has claimed. A call for several names applies the
// options of each, with the shortest TTL. policy must be safe for concurrent use and must not
// block. Its panic continues in the call, before anything is sent.
func WithNamePolicy(policy func(name string) ([]LeaseOption, error)) Option {
	return clientOption(func(c *clientConfig) error {
		c.policy = policy
		return nil
	})
}

// WithPollOnly makes waiters poll instead of using LISTEN, for poolers in transaction mode and
// servers without notifications. They then acquire a released lock up to 375 ms later. By default,
// clients use LISTEN, and poll while notifications do not arrive, which they test on each
// connection.
func WithPollOnly() Option {
	return clientOption(func(c *clientConfig) error { c.pollOnly = true; return nil })
}

// WithStandby makes the client accept a standby, or a database with default_transaction_read_only,
// which Open otherwise refuses. There a program can look: Get, Locks, Watch and Snapshot work, but the
// waiters on a standby are not known, because their tables are not replicated, and times are by
// its clock. Everything that changes a lock fails with ErrUnavailable. WithStandby includes
// WithPollOnly, and the client never prunes.
func WithStandby() Option {
	return clientOption(func(c *clientConfig) error { c.standby, c.pollOnly = true, true; return nil })
}

// WithListener sets a connection string, as a URL or in keyword/value form, for the listening
// connection, such as one that bypasses a pooler to the same database. The default is the pool's.
// Parameters of pgxpool, such as pool_max_conns, are ignored, so the string may be that of a pool.
func WithListener(connString string) Option {
	return clientOption(func(c *clientConfig) error {
		config, err := pgxpool.ParseConfig(connString)
		if err != nil {
			return invalidOption("listener: connection string: %v", err)
		}
		c.listener = config.ConnConfig
		return nil
	})
}

// WithBarging makes a caller ignore the wait queue, so that it may acquire a free lock before the
// waiters.
func WithBarging() LeaseOption {
	return leaseOption(func(c *leaseConfig) error { c.barging = true; return nil })
}

// WithWait bounds how long Acquire waits for the lock, otherwise until ctx ends, but neither the
// lease nor the work. The *WaitError after that time wraps ErrTimeout. Each call makes an attempt,
// which has a second even if d is shorter. With 0, Acquire is TryAcquire, which never waits.
func WithWait(d time.Duration) LeaseOption {
	return leaseOption(func(c *leaseConfig) error {
		c.wait, c.waitSet = d, true
		return require(d >= 0, "wait %v is negative: must be 0 or more", d)
	})
}

// WithTTL sets how long a grant lasts unless renewed, from 10 ms to 10 years, and by default 30 s.
// Others wait that long after a holder dies. A holder outlives any outage of the server of up to
// the TTL less the safety margin less the renewal interval, which is 17 s with the defaults.
func WithTTL(d time.Duration) LeaseOption {
	return leaseOption(func(c *leaseConfig) error {
		c.ttl = d
		return checkRange("TTL", d, timing.MinTTL)
	})
}

// WithSafetyMargin sets how long before the server's expiry the holder stops trusting the lease,
// less than the TTL, and by default a tenth of it, at most 5 s. The margin covers clocks that run
// at different rates, and the time that the holder's work needs to stop.
func WithSafetyMargin(d time.Duration) LeaseOption {
	return leaseOption(func(c *leaseConfig) error {
		c.margin, c.marginSet = d, true
		return checkRange("safety margin", d, 0)
	})
}

// WithRenewEvery sets the longest time between renewals, which start up to a tenth earlier. It must
// be less than the TTL minus the safety margin, because a renewal must be answered in the rest, and
// is a third of the TTL by default, or half of the trusted time if that is less. With 0 the lease
// is not renewed, and ends after its TTL unless Extend extends it.
func WithRenewEvery(d time.Duration) LeaseOption {
	return leaseOption(func(c *leaseConfig) error {
		c.renewEvery, c.noRenewal = d, d == 0
		return require(d >= 0, "renewal interval %v is negative: must be 0 or more", d)
	})
}

// WithHolder sets the holder's name that others see, 1 to 512 bytes of UTF-8 without NUL. It does
// not affect grants, and consists of host name, process ID and a random part by default.
func WithHolder(name string) LeaseOption {
	return leaseOption(func(c *leaseConfig) error {
		c.holder = name
		return require(name != "" && len(name) <= maxHolder && storable(name), "holder %.64q: must be 1 to %d bytes of UTF-8 without NUL", name, maxHolder)
	})
}

func newClientConfig(opts []Option) (clientConfig, error) {
	c := clientConfig{
		schema:    schema.Default,
		maxConns:  defaultMaxConns,
		retention: timing.DefaultRetention,
		logger:    slog.New(defaultHandler{}),
		lease:     leaseConfig{ttl: timing.DefaultTTL, labels: "{}", holder: defaultHolder()},
	}
	if err := errs.ApplyBy("pglock", &c, opts, Option.applyClient); err != nil {
		return c, err
	}
	if c.pollOnly && c.listener != nil {
		return c, invalidOption("WithListener and WithPollOnly or WithStandby: conflict: use one of them")
	}
	c.logger = quiet.Logger(c.logger)
	resolved := c.lease
	c.resolved = &resolved
	return c, resolved.check()
}

// leaseFor returns the configuration of a lease of these names with the options of the policy and
// then opts. Leases share it, so it must not be changed.
func (c *clientConfig) leaseFor(names []string, opts []LeaseOption) (*leaseConfig, error) {
	if c.policy == nil && len(opts) == 0 {
		return c.resolved, nil
	}
	cfg := new(leaseConfig)
	*cfg = c.lease
	if c.policy != nil {
		if err := c.applyPolicy(cfg, names); err != nil {
			return nil, err
		}
	}
	if err := cfg.apply(opts); err != nil {
		return nil, err
	}
	return cfg, cfg.check()
}

func (c *clientConfig) applyPolicy(cfg *leaseConfig, names []string) error {
	shortest := timing.MaxTTL + 1
	for _, name := range names {
		opts, err := c.policy(name)
		if err != nil {
			return errs.Errorf("pglock: acquire %q: refused by WithNamePolicy: %w", name, err)
		}
		if err := cfg.apply(opts); err != nil {
			return err
		}
		shortest = min(shortest, cfg.ttl)
		if len(names) > 1 {
			cfg.ttl = c.lease.ttl
		}
	}
	cfg.ttl = shortest
	return nil
}

// forLock returns the configuration for a lock that is not plain, with several names or permits.
func (c *leaseConfig) forLock(l Lock) *leaseConfig {
	cfg := *c
	cfg.permits, cfg.names, cfg.each = l.permits, l.names, l.each
	return &cfg
}

func (c *leaseConfig) request(name, id string) *leasetable.Request {
	return &leasetable.Request{
		Name: name, All: c.names, Each: c.each, ID: id, Holder: c.holder, Labels: c.labels,
		TTL: c.grantTTL(), Ticket: leasetable.NoTicket, Permits: c.permits,
	}
}

// plain reports whether the configuration is for one name with one holder, whose attempts and
// releases share statements with others, and whose release can hand the lock off within the
// process.
func (c *leaseConfig) plain() bool { return c.names == nil && !c.permits.Any() }

// batchSize returns the largest number of names in one acquire or release statement.
func (c *clientConfig) batchSize() int { return cmp.Or(c.batch, maxBatch) }

func (c *leaseConfig) apply(opts []LeaseOption) error {
	return errs.ApplyBy("pglock", c, opts, LeaseOption.applyLease)
}

// check resolves the defaults that depend on the TTL, and returns an error for conflicts.
func (c *leaseConfig) check() error {
	if !c.marginSet {
		c.margin = min(c.ttl/10, timing.MaxMargin)
	}
	if c.margin >= c.ttl {
		return invalidOption("safety margin %v, TTL %v: the margin must be less than the TTL", c.margin, c.ttl)
	}
	if c.noRenewal {
		return nil
	}
	c.renewEvery = cmp.Or(c.renewEvery, min(c.ttl/3, (c.ttl-c.margin)/2))
	if trusted := c.ttl - c.margin; c.renewEvery >= trusted {
		return invalidOption("renewal interval %v, TTL %v, safety margin %v: the interval must be less than %v, the TTL minus the margin",
			c.renewEvery, c.ttl, c.margin, trusted)
	}
	return nil
}

// defaultHolder returns a name that identifies the process that holds a lock.
func defaultHolder() string {
	host, err := os.Hostname()
	if err != nil || !storable(host) {
		host = "unknown"
	}
	return fmt.Sprintf("%.200s:%d:%.6s", host, os.Getpid(), rand.Text())
}

// CheckName returns an error that wraps ErrInvalidOption unless name is 1 to 512 bytes of UTF-8
// without NUL.
func CheckName(name string) error { return errs.CheckName(name) }

// storable reports whether PostgreSQL stores s in a text column unchanged.
func storable(s string) bool { return utf8.ValidString(s) && !strings.ContainsRune(s, 0) }
