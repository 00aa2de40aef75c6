package migrations

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/pglock"
)

// RunOption configures Run.
type RunOption interface {
	applyRun(*runConfig) error
}

// LockOption configures what a run's lock is. It is one for Run and Wrap.
type LockOption interface {
	RunOption
	applyLock(*lockConfig) error
}

// WaitOption configures the wait for the lock. It is one for Run, Wrap and Guard.
type WaitOption interface {
	LockOption
	applyWait(*waitConfig) error
}

type waitConfig struct {
	timeout time.Duration // 0: as long as ctx
	every   time.Duration
	report  func(Progress)
	logger  *slog.Logger
	holder  string
}

type lockConfig struct {
	wait   waitConfig
	name   string // empty: the caller's default
	client *pglock.Client
	lease  []pglock.LeaseOption
}

type runConfig struct {
	lock   lockConfig
	schema string // empty: the connection's
	table  string
	locked func(hold) // for tests: told of the lock; may be nil
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

// WithTimeout bounds the wait for the lock: when it is over the error is a *WaitError with
// ErrTimeout, and nothing of the waiter is left on the server. Default: as long as ctx; for
// Wrap, four fifths of golang-migrate's DefaultLockTimeout.
func WithTimeout(d time.Duration) WaitOption {
	return waitOption(func(c *waitConfig) error {
		if d <= 0 {
			return invalidOption("a time-out of %v, it must be positive", d)
		}
		c.timeout = d
		return nil
	})
}

// WithProgress has report called while somebody else holds the lock: a second after the
// wait began, and then again and again with that time between. It is called by one
// goroutine, and not any more when the wait has ended. Default: nobody is told.
func WithProgress(every time.Duration, report func(Progress)) WaitOption {
	return waitOption(func(c *waitConfig) error {
		if every <= 0 || report == nil {
			return invalidOption("progress every %v to a function (nil: %v): both must be given", every, report == nil)
		}
		c.every, c.report = every, report
		return nil
	})
}

// WithLogger has waits (every 5 s, unless WithProgress says otherwise), migrations that were carried
// out and losses logged. Default: none is.
func WithLogger(l *slog.Logger) WaitOption {
	return waitOption(func(c *waitConfig) error {
		if l == nil {
			return invalidOption("the logger is nil")
		}
		c.logger = l
		return nil
	})
}

// WithHolder sets what waiters are told about who holds the lock. An advisory lock has room
// for the first 36 bytes, and ASCII. Default: host name, process id and a random part.
func WithHolder(name string) WaitOption {
	return waitOption(func(c *waitConfig) error {
		if name == "" {
			return invalidOption("a holder without a name")
		}
		c.holder = name
		return nil
	})
}

// WithName sets the lock's name: runs with the same name, on the same database, exclude
// each other. Default: the name of the version table for Run, "golang-migrate" for Wrap.
func WithName(name string) LockOption {
	return lockOption(func(c *lockConfig) error {
		if name == "" {
			return invalidOption("a lock without a name")
		}
		c.name = name
		return nil
	})
}

// WithLease makes the lock a lease of client's, instead of a session's advisory lock: for
// databases behind a pooler in transaction mode, and for locks that shall show in
// `pglock ls`. Default: an advisory lock.
func WithLease(client *pglock.Client, opts ...pglock.LeaseOption) LockOption {
	return lockOption(func(c *lockConfig) error {
		if client == nil {
			return invalidOption("the client is nil")
		}
		c.client, c.lease = client, opts
		return nil
	})
}

// WithVersionTable names the table in which Run records the version. It has golang-migrate's
// form. An empty schema is the first one of the connection's search_path. Default
// schema_migrations, like golang-migrate.
func WithVersionTable(schema, table string) RunOption {
	return runOption(func(c *runConfig) error {
		if table == "" {
			return invalidOption("a version table without a name")
		}
		c.schema, c.table = schema, table
		return nil
	})
}

func invalidOption(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrInvalidOption}, args...)...)
}

func newWaitConfig() waitConfig {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return waitConfig{holder: fmt.Sprintf("%.22s:%d:%.4s", host, os.Getpid(), rand.Text())}
}

// complete resolves what depends on several options.
func (c *waitConfig) complete() {
	if c.report == nil && c.logger != nil {
		logger := c.logger
		c.report = func(p Progress) {
			logger.Info("pglock: "+p.String(), "lock", p.Lock, "holder", p.Holder, "held", p.Held, "waited", p.Waited)
		}
	}
	c.every = cmp.Or(c.every, defaultEvery)
	if c.logger == nil {
		c.logger = slog.New(slog.DiscardHandler)
	}
}

// open makes the lock.
func (c *lockConfig) open(ctx context.Context, pool *pgxpool.Pool) (lock, error) {
	if c.client != nil {
		return newLeaseLock(c.client, c.name, c.wait.holder, c.lease), nil
	}
	if pool == nil {
		return nil, invalidOption("the pool is nil, and there is no lease")
	}
	return newSessionLock(ctx, pool, c.name, c.wait.holder)
}
