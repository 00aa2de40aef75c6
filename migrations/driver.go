package migrations

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/golang-migrate/migrate/v4"
	"github.com/golang-migrate/migrate/v4/database"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Driver is one of golang-migrate's drivers for PostgreSQL under a lock of ours. It is
// for those who use golang-migrate itself; Run needs none.
//
//	driver, err := migrations.Wrap(ctx, driver, pool)
//	...
//	m, err := migrate.NewWithInstance("iofs", source, "pgx5", driver)
//
// Lock waits without a snapshot, so that CREATE INDEX CONCURRENTLY is not blocked by those
// who wait, and no longer than WithTimeout. If golang-migrate's own LockTimeout is over
// first, a lock that is granted later is given back.
//
// When the lock is lost, the migration under way is carried out, its end is recorded if the
// lock can be had again and the version was not touched meanwhile, and the run stops with a
// *StoppedError before the next one. A migration that fails leaves the version dirty, as
// always with golang-migrate.
//
// It is as safe for concurrent use as golang-migrate needs it.
type Driver struct {
	inner  database.Driver
	ctx    context.Context //nolint:containedctx // golang-migrate's methods have none
	cancel context.CancelFunc
	pool   *pgxpool.Pool
	cfg    lockConfig
	lock   lock

	mu       sync.Mutex // guards what follows; Lock waits under locking instead
	held     hold       // nil if not locked; it stays when it is lost
	unused   *time.Timer
	patience time.Duration // with a lock that nobody uses
	clean    int           // the last version that was seen clean
	marked   int           // the last version that was marked dirty

	locking sync.Mutex // held by Lock and Unlock
}

// patienceUnused: golang-migrate uses its lock at once, unless it has given up.
const patienceUnused = 10 * time.Second

// Wrap puts driver's runs under a lock on the database of pool, which must be the one that
// driver migrates: an advisory lock of a session of its own or, by WithLease, a lease. It
// takes connections of its own, like pool's. ctx governs the waits for the lock and the
// runs, which stop between two migrations when it is done; not Wrap, which asks nobody.
//
// Opening a driver takes the driver's own lock for a moment, and behind a pooler in
// transaction mode may leave it behind: use Run there. Close closes driver, too.
func Wrap(ctx context.Context, driver database.Driver, pool *pgxpool.Pool, opts ...LockOption) (*Driver, error) {
	cfg := lockConfig{wait: newWaitConfig(), name: "golang-migrate"}
	cfg.wait.timeout = migrate.DefaultLockTimeout * 4 / 5
	for _, o := range opts {
		if err := o.applyLock(&cfg); err != nil {
			return nil, err
		}
	}
	if driver == nil {
		return nil, invalidOption("the driver is nil")
	}
	cfg.wait.complete()
	return wrap(ctx, driver, pool, cfg)
}

func wrap(ctx context.Context, driver database.Driver, pool *pgxpool.Pool, cfg lockConfig) (*Driver, error) {
	l, err := cfg.open(ctx, pool)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	return &Driver{inner: driver, ctx: ctx, cancel: cancel, pool: pool, cfg: cfg, lock: l, patience: patienceUnused, clean: none, marked: none}, nil
}

// Open wraps what the driver opens, with the same lock.
func (d *Driver) Open(url string) (database.Driver, error) {
	inner, err := d.inner.Open(url)
	if err != nil {
		return nil, err
	}
	outer, err := wrap(d.ctx, inner, d.pool, d.cfg)
	if err != nil {
		return nil, errors.Join(err, inner.Close())
	}
	return outer, nil
}

// Close ends a wait for the lock, releases it if it is held, and closes the driver.
func (d *Driver) Close() error {
	d.cancel()
	err := d.Unlock()
	if errors.Is(err, database.ErrNotLocked) {
		err = nil
	}
	d.lock.close()
	return errors.Join(err, d.inner.Close())
}

// Lock waits for the lock. The error is a *WaitError that tells who holds it, or
// database.ErrLocked if this driver does.
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
		return errors.Join(err, giveUp(d.ctx, h))
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.held = h
	d.unused = time.AfterFunc(d.patience, func() { d.giveBack(h) })
	return nil
}

// probe asks for what only PostgreSQL knows: a lock in one server does not protect another
// database's migrations from those who don't know it.
func (d *Driver) probe() error {
	if err := d.inner.Run(strings.NewReader("SELECT pg_backend_pid()")); err != nil {
		return fmt.Errorf("%w, or not one that answers: driver %T: %w", ErrNotPostgres, d.inner, err)
	}
	return nil
}

// unusedLock is the state of a lock that was given back because nobody used it.
type unusedLock struct{ hold }

var errUnused = fmt.Errorf("%w: it was given back, because nobody used it: golang-migrate's LockTimeout was over before it was granted", ErrLost)

func (unusedLock) Err() error { return errUnused }

// giveBack releases a lock that was granted to a caller who had left.
func (d *Driver) giveBack(h hold) {
	d.mu.Lock()
	left := d.held == h && d.unused != nil
	if left {
		d.held, d.unused = unusedLock{h}, nil
	}
	d.mu.Unlock()
	if left {
		_ = giveUp(d.ctx, h) // it ends with its connection, or by its TTL
	}
}

// use returns the lock that is held or was, nil for none: golang-migrate's users may call
// a driver without one.
func (d *Driver) use() hold {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.unused != nil {
		d.unused.Stop()
		d.unused = nil
	}
	return d.held
}

// postpone gives a caller more time to use its lock.
func (d *Driver) postpone() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.unused != nil {
		d.unused.Reset(d.patience)
	}
}

// Unlock releases the lock. It returns nil also if the lock was lost: then the call that
// it mattered to has failed.
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
	if h.Err() != nil {
		return nil
	}
	if err := giveUp(d.ctx, h); err != nil {
		d.cfg.wait.logger.Warn("pglock: the lock of a migration could not be released", "lock", d.cfg.name, "error", err)
	}
	return nil
}

// Version returns the version and whether it is dirty. It needs no lock, so it does not show that one is used.
func (d *Driver) Version() (version int, dirty bool, err error) {
	d.postpone()
	version, dirty, err = d.inner.Version()
	if err == nil && !dirty {
		d.saw(version, false)
	}
	return version, dirty, err
}

// Run carries a migration out, unless the lock was lost.
func (d *Driver) Run(migration io.Reader) error {
	if h := d.use(); h != nil && h.Err() != nil {
		return d.settle(h, d.before()) // nothing was done: the mark is taken back
	}
	return d.inner.Run(migration)
}

// SetVersion records the version. After a loss it begins no migration, and records the end
// of one as far as that is safe.
func (d *Driver) SetVersion(version int, dirty bool) error {
	h := d.use()
	switch {
	case h != nil && h.Err() != nil && dirty:
		return &StoppedError{Lock: d.cfg.name, Version: d.before(), Cause: h.Err()}
	case h != nil && h.Err() != nil:
		return d.settle(h, version)
	case dirty && d.ctx.Err() != nil:
		return fmt.Errorf("migrations: stopped at version %d: %w", d.before(), context.Cause(d.ctx))
	}
	err := d.inner.SetVersion(version, dirty)
	if err == nil {
		d.saw(version, dirty)
	}
	return err
}

// saw remembers what the version table says.
func (d *Driver) saw(version int, dirty bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if dirty {
		d.marked = version
	} else {
		d.clean = version
	}
}

// before returns the last version that was seen clean.
func (d *Driver) before() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.clean
}

// Drop deletes everything, unless the lock was lost.
func (d *Driver) Drop() error {
	if h := d.use(); h != nil && h.Err() != nil {
		return &StoppedError{Lock: d.cfg.name, Version: d.before(), Cause: h.Err()}
	}
	return d.inner.Drop()
}
