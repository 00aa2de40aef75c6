package runner

import (
	"context"
	"sync"

	"github.com/golang-migrate/migrate/v4"
	"github.com/golang-migrate/migrate/v4/database"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/errs"
)

// Driver is one of golang-migrate's drivers for PostgreSQL whose Lock and Unlock are those of this
// package. It is for programs that call golang-migrate themselves; Run needs none.
//
//	driver, err := runner.Wrap(ctx, driver, pool)
//	...
//	m, err := migrate.NewWithInstance("iofs", source, "pgx5", driver)
//
// All other methods are the wrapped driver's. A run that loses its lock therefore continues, and
// learns of the loss from Unlock, whose error golang-migrate adds to that of the run. Run stops
// before the next migration instead.
type Driver struct {
	database.Driver
	ctx    context.Context //nolint:containedctx // golang-migrate's methods take none
	cancel context.CancelFunc
	cfg    lockConfig
	lock   lock

	mu   sync.Mutex // guards held; held while Lock waits
	held heldLock   // nil if not locked
}

// Wrap returns a Driver that runs driver under a lock on the database of pool, which must be the
// database that driver migrates. The lock is an advisory lock of a session or, with WithLease, a
// lease. It opens connections of its own, like those of pool. ctx bounds the waits for the lock.
//
// The lock is named as that of Run, after the version table. If driver's is not schema_migrations
// in the first schema of the connection's search_path, pass WithVersionTable.
//
// golang-migrate's LockTimeout must be longer than WithTimeout, as its default is. Otherwise the
// lock may be granted after golang-migrate has given up, and is then held until Close.
//
// golang-migrate's drivers acquire their own lock while they are opened, and behind a pooler in
// transaction mode they may leave it behind: use Run there.
func Wrap(ctx context.Context, driver database.Driver, pool *pgxpool.Pool, opts ...LockOption) (*Driver, error) {
	cfg := newLockConfig()
	cfg.wait.timeout = migrate.DefaultLockTimeout * 4 / 5
	for _, o := range opts {
		if err := o.applyLock(&cfg); err != nil {
			return nil, err
		}
	}
	if driver == nil || pool == nil {
		return nil, errs.InvalidOption("runner", "Wrap: the driver or the pool is nil")
	}
	if cfg.name == "" {
		table, err := openVersionTable(ctx, pool, cfg)
		if err != nil {
			return nil, err
		}
		cfg.name = lockName(table)
	}
	l, err := cfg.open(ctx, pool)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	return &Driver{Driver: driver, ctx: ctx, cancel: cancel, cfg: cfg, lock: l}, nil
}

// Lock waits for the lock. The error is a *WaitError that names the holder, or database.ErrLocked
// if this Driver holds the lock.
func (d *Driver) Lock() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.held != nil {
		return database.ErrLocked
	}
	h, err := wait(d.ctx, d.lock, d.cfg.name, d.cfg.wait)
	if err != nil {
		return err
	}
	d.held = h
	return nil
}

// Unlock releases the lock. The error wraps ErrLost if the lock was lost before: another process
// may have migrated at the same time.
func (d *Driver) Unlock() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.held == nil {
		return database.ErrNotLocked
	}
	h := d.held
	d.held = nil
	return release(d.ctx, h)
}

// Close ends a wait for the lock, releases the lock if it is held, and closes the wrapped driver.
func (d *Driver) Close() error {
	d.cancel()
	d.mu.Lock()
	defer d.mu.Unlock()
	var err error
	if d.held != nil {
		err = release(d.ctx, d.held)
		d.held = nil
	}
	d.lock.close()
	return errs.Join(err, d.Driver.Close())
}
