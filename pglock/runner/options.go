package runner

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/pglock"
)

// RunOption configures Run.
type RunOption interface {
	applyRun(*runConfig) error
}

// LockOption configures the lock of Run and Wrap.
type LockOption interface {
	RunOption
	applyLock(*lockConfig) error
}

// WaitOption configures how Run, Wrap and Guard wait for the lock.
type WaitOption interface {
	LockOption
	applyWait(*waitConfig) error
}

type waitConfig struct {
	timeout  time.Duration // 0: until ctx ends
	interval time.Duration // between two reports to the logger
	logger   *slog.Logger
	holder   string
	granted  func(heldLock) // for tests: called with the lock when it is granted; may be nil
}

type lockConfig struct {
	wait   waitConfig
	name   string // empty: named after the version table
	schema string // of the version table; empty: the connection's
	table  string
	key    *int64 // of another program's lock; nil for none
	client *pglock.Client
	lease  []pglock.LeaseOption
}

type runConfig struct {
	lock       lockConfig
	allowNewer bool
}

type waitOption func(*waitConfig) error

func (o waitOption) applyWait(c *waitConfig) error { return o(c) }
func (o waitOption) applyLock(c *lockConfig) error { return o(&c.wait) }
func (o waitOption) applyRun(c *runConfig) error   { return o(&c.lock.wait) }

type lockOption func(*lockConfig) error

func (o lockOption) applyLock(c *lockConfig) error { return o(c) }
func (o lockOption) applyRun(c *runConfig) error   { return o(&c.lock) }

type runOption func(*runConfig) error

func (o runOption) applyRun(c *runConfig) error { return o(c) }

// WithTimeout bounds the wait for the lock. When the time is over, the error is a *WaitError that
// wraps ErrTimeout, and nothing of the waiter is left on the server. Default: until ctx ends; for
// Wrap, four fifths of golang-migrate's DefaultLockTimeout.
func WithTimeout(d time.Duration) WaitOption {
	return waitOption(func(c *waitConfig) error {
		if d <= 0 {
			return errs.InvalidOption("runner", "WithTimeout: %v: must be positive", d)
		}
		c.timeout = d
		return nil
	})
}

// WithLogger logs who holds the lock during a wait (after 1 s, and then every 5 s), applied
// migrations, and locks that could not be released. Nil means no logger, which is the default.
// Failures are returned as errors in any case.
func WithLogger(l *slog.Logger) WaitOption {
	return waitOption(func(c *waitConfig) error {
		if c.logger = l; l == nil {
			c.logger = slog.New(slog.DiscardHandler)
		}
		return nil
	})
}

// WithHolder sets the name that waiters see as the holder of the lock. An advisory lock has room
// for 36 bytes of ASCII; the rest is cut. Default: host name, process id and a random suffix.
func WithHolder(name string) WaitOption {
	return waitOption(func(c *waitConfig) error {
		if name == "" {
			return errs.InvalidOption("runner", "WithHolder: the name is empty")
		}
		c.holder = name
		return nil
	})
}

// WithName sets the name of the lock. Runs with the same name on the same database exclude each
// other. Default: a name made of the version table's schema and name, the same for Run and Wrap.
func WithName(name string) LockOption {
	return lockOption(func(c *lockConfig) error {
		if name == "" {
			return errs.InvalidOption("runner", "WithName: the name is empty")
		}
		c.name = name
		return nil
	})
}

// WithLease makes the lock a lease of client: for databases behind a pooler in transaction mode,
// and for locks that `pglock ls` lists. Default: a session's advisory lock.
func WithLease(client *pglock.Client, opts ...pglock.LeaseOption) LockOption {
	return lockOption(func(c *lockConfig) error {
		if client == nil {
			return errs.InvalidOption("runner", "WithLease: the client is nil")
		}
		c.client, c.lease = client, opts
		return nil
	})
}

// WithKey makes a run acquire the advisory lock of another program too, pg_advisory_lock(id), after
// its own. Use it for one release, while replicas of the previous one still migrate under the lock
// of golang-migrate ([GolangMigrateKey]) or goose (gooselock.DefaultKey): old and new replicas then
// exclude each other. The release after that can drop WithKey, because the run acquires its own
// lock as well.
//
// The wait polls for both locks, and WithTimeout bounds it. The other lock needs a session, so
// WithKey does not work behind a pooler in transaction mode, also if the run's own lock is a lease.
// Replicas of the previous release hold a snapshot while they wait, so CREATE INDEX CONCURRENTLY
// waits for them. Default: the run's own lock only.
func WithKey(id int64) LockOption {
	return lockOption(func(c *lockConfig) error { c.key = &id; return nil })
}

// AllowNewer makes Run return nil, and change nothing, if the database's version is higher than the
// last one of the source. Use it for a release that works with the tables of later releases: during
// a rollout its replicas can then restart after a later release has migrated. Run can't tell a
// later release from another program that uses the same version table. Default:
// ErrUnknownVersion.
func AllowNewer() RunOption {
	return runOption(func(c *runConfig) error { c.allowNewer = true; return nil })
}

// WithVersionTable sets the table in which Run records the version, in golang-migrate's form. For
// Wrap, it says which table the driver uses, since the lock is named after it. An empty schema
// means the first one of the connection's search_path. Default: schema_migrations, as for
// golang-migrate.
func WithVersionTable(schema, table string) LockOption {
	return lockOption(func(c *lockConfig) error {
		if table == "" {
			return errs.InvalidOption("runner", "WithVersionTable: the table's name is empty")
		}
		c.schema, c.table = schema, table
		return nil
	})
}

func newLockConfig() lockConfig {
	return lockConfig{wait: newWaitConfig(), table: defaultTable}
}

func newWaitConfig() waitConfig {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	holder := fmt.Sprintf("%.22s:%d:%.4s", host, os.Getpid(), rand.Text())
	return waitConfig{holder: holder, interval: defaultInterval, logger: slog.New(slog.DiscardHandler)}
}

// open makes the lock. It does not acquire it.
func (c *lockConfig) open(ctx context.Context, pool *pgxpool.Pool) (lock, error) {
	var own lock = newLeaseLock(c.client, c.name, c.wait.holder, c.lease)
	if c.client == nil {
		s, err := newSessionLock(ctx, pool, advisory.NewKey(keyNamespace, c.name), c.wait.holder)
		if err != nil {
			return nil, err
		}
		own = s
	}
	if c.key == nil {
		return own, nil
	}
	other, err := newSessionLock(ctx, pool, advisory.KeyFromInt64(*c.key), c.wait.holder)
	if err != nil {
		own.close()
		return nil, err
	}
	return &bothLocks{own, other}, nil
}
