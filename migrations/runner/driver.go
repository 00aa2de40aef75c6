package runner

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/golang-migrate/migrate/v4"
	"github.com/golang-migrate/migrate/v4/database"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/errs"
)

// Driver is one of golang-migrate's drivers for PostgreSQL under a lock of this package. It is for
// programs that call golang-migrate themselves; Run needs none.
//
//	driver, err := runner.Wrap(ctx, driver, pool)
//	...
//	m, err := migrate.NewWithInstance("iofs", source, "pgx5", driver)
//
// Lock waits without a snapshot, so that waiters do not block CREATE INDEX CONCURRENTLY, and no
// longer than WithTimeout. If golang-migrate's own LockTimeout is over first, the Driver releases a
// lock that is granted later.
//
// If the lock is lost, the current migration finishes, and the run stops with a *StoppedError
// before the next one. The Driver records the end of the current migration if it can acquire the
// lock again and the version has not changed. A migration that fails leaves the version dirty, as
// always with golang-migrate.
//
// A Driver is as safe for concurrent use as golang-migrate needs.
type Driver struct {
	inner  database.Driver
	ctx    context.Context //nolint:containedctx // golang-migrate's methods take none
	cancel context.CancelFunc
	pool   *pgxpool.Pool
	given  lockConfig // the options of Wrap, for Open
	cfg    lockConfig // given, with the lock's name
	lock   lock

	mu            sync.Mutex    // guards the fields below; not held while Lock waits
	held          heldLock      // nil if not locked; kept when it is lost
	unusedTimer   *time.Timer   // releases the lock; nil once the lock is used
	unusedTimeout time.Duration // of unusedTimer
	clean         int           // the last version that was seen clean
	marked        int           // the last version that was marked dirty

	locking sync.Mutex // held by Lock and Unlock
}

// unusedTimeout is how long a Driver keeps a lock that is not used: golang-migrate uses its lock at
// once, unless its LockTimeout was over before the lock was granted.
const unusedTimeout = 10 * time.Second

// Wrap returns a Driver that runs driver under a lock on the database of pool, which must be the
// database that driver migrates. The lock is an advisory lock of a session or, with WithLease, a
// lease. It opens connections of its own, like those of pool. ctx bounds the waits for the lock and
// the runs, which stop between two migrations when it ends. Wrap does not contact the database.
//
// The lock is named after driver's schema and version table, as that of Run. For a driver that is
// not golang-migrate's own, and embeds none of those, WithName must name it; otherwise the error is
// ErrInvalidOption.
//
// golang-migrate's drivers acquire their own lock while they are opened, and behind a pooler in
// transaction mode they may leave it behind: use Run there. Close closes driver too.
func Wrap(ctx context.Context, driver database.Driver, pool *pgxpool.Pool, opts ...LockOption) (*Driver, error) {
	cfg := lockConfig{wait: newWaitConfig()}
	cfg.wait.timeout = migrate.DefaultLockTimeout * 4 / 5
	for _, o := range opts {
		if err := o.applyLock(&cfg); err != nil {
			return nil, err
		}
	}
	if driver == nil {
		return nil, errs.InvalidOption("runner", "Wrap: the driver is nil")
	}
	if err := cfg.complete(pool); err != nil {
		return nil, err
	}
	return wrap(ctx, driver, pool, cfg)
}

func wrap(ctx context.Context, driver database.Driver, pool *pgxpool.Pool, cfg lockConfig) (*Driver, error) {
	given := cfg
	if cfg.name == "" {
		quoted, ok := tableOf(driver)
		if !ok {
			return nil, errs.InvalidOption("runner", "Wrap: the version table of the driver, a %T, is not known: name the lock by WithName", driver)
		}
		cfg.name = lockName(quoted)
	}
	l, err := cfg.open(ctx, pool)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	return &Driver{
		inner: driver, ctx: ctx, cancel: cancel, pool: pool, given: given, cfg: cfg, lock: l,
		unusedTimeout: unusedTimeout, clean: noVersion, marked: noVersion,
	}, nil
}

// Open opens another driver like the wrapped one, and wraps it with the same options. Unless
// WithName was one of them, the lock is named after the opened driver's version table.
func (d *Driver) Open(url string) (database.Driver, error) {
	inner, err := d.inner.Open(url)
	if err != nil {
		return nil, err
	}
	outer, err := wrap(d.ctx, inner, d.pool, d.given)
	if err != nil {
		return nil, errs.Join(err, inner.Close())
	}
	return outer, nil
}

// Close ends a wait for the lock, releases the lock if it is held, and closes the wrapped driver.
func (d *Driver) Close() error {
	d.cancel()
	err := d.Unlock()
	if errors.Is(err, database.ErrNotLocked) {
		err = nil
	}
	d.lock.close()
	return errs.Join(err, d.inner.Close())
}

// Lock waits for the lock. The error is a *WaitError that names the holder, or database.ErrLocked
// if this Driver holds the lock.
func (d *Driver) Lock() error {
	d.locking.Lock()
	defer d.locking.Unlock()
	d.mu.Lock()
	locked := d.held != nil && !errors.Is(d.held.Err(), errUnused)
	d.mu.Unlock()
	if locked {
		return database.ErrLocked
	}
	h, err := wait(d.ctx, d.lock, d.cfg.name, d.cfg.wait)
	if err != nil {
		return err
	}
	if err := d.probe(); err != nil {
		return errs.Join(err, release(d.ctx, h))
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.held = h
	d.unusedTimer = time.AfterFunc(d.unusedTimeout, func() { d.releaseUnused(h) })
	return nil
}

// probe returns an error unless the driver is on PostgreSQL: a lock on one server does not protect
// the migrations of another.
func (d *Driver) probe() error {
	if err := d.inner.Run(strings.NewReader("SELECT pg_backend_pid()")); err != nil {
		return errs.Errorf("%w: driver %T: SELECT pg_backend_pid() failed: %w", ErrNotPostgres, d.inner, err)
	}
	return nil
}

// Unlock releases the lock. It also returns nil if the lock was lost: the call that the loss
// mattered to has returned the error.
func (d *Driver) Unlock() error {
	d.locking.Lock()
	defer d.locking.Unlock()
	h := d.use()
	if h == nil {
		return database.ErrNotLocked
	}
	d.mu.Lock()
	d.held = nil
	d.mu.Unlock()
	lost := h.Err() != nil
	if err := release(d.ctx, h); err != nil && !lost { // of two locks one may still be held
		d.cfg.wait.logger.Warn("pglock: the lock of a migration could not be released", "lock", d.cfg.name, "error", err)
	}
	return nil
}

// Version returns the version and whether it is dirty. It needs no lock, and does not count as a
// use of the lock.
func (d *Driver) Version() (version int, dirty bool, err error) {
	d.extendUnused()
	version, dirty, err = d.inner.Version()
	if err == nil && !dirty {
		d.noteVersion(version, false)
	}
	return version, dirty, err
}

// Run runs a migration, unless the lock was lost.
func (d *Driver) Run(migration io.Reader) error {
	if h := d.use(); h != nil && h.Err() != nil {
		return d.clearDirtyMark(h, d.lastClean()) // the migration has not run
	}
	return d.inner.Run(migration)
}

// SetVersion records the version. After a loss it begins no migration, and records the end of one
// only if that is safe.
func (d *Driver) SetVersion(version int, dirty bool) error {
	h := d.use()
	switch {
	case h != nil && h.Err() != nil && dirty:
		return &StoppedError{Lock: d.cfg.name, Version: d.lastClean(), Cause: h.Err()}
	case h != nil && h.Err() != nil:
		return d.clearDirtyMark(h, version)
	case dirty && d.ctx.Err() != nil:
		return errs.Errorf("runner: stopped at version %d: %w", d.lastClean(), context.Cause(d.ctx))
	}
	err := d.inner.SetVersion(version, dirty)
	if err == nil {
		d.noteVersion(version, dirty)
	}
	return err
}

// Drop deletes everything, unless the lock was lost.
func (d *Driver) Drop() error {
	if h := d.use(); h != nil && h.Err() != nil {
		return &StoppedError{Lock: d.cfg.name, Version: d.lastClean(), Cause: h.Err()}
	}
	return d.inner.Drop()
}
