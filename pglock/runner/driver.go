package runner

import (
	"context"
	"errors"
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
// All other methods are the wrapped driver's. A run that loses its lock therefore continues. Unlock
// then returns the loss, which golang-migrate adds to the error of the run.
type Driver struct {
	database.Driver
	ctx    context.Context //nolint:containedctx // golang-migrate's methods take none
	cancel context.CancelFunc
	cfg    *config
	pool   *pgxpool.Pool // its own

	mu   sync.Mutex // guards held; held while Lock waits
	held heldLocks  // nil if not locked
}

// Wrap returns a Driver that runs driver under a lock on the database of pool, which must be the
// database that driver migrates. The lock is an advisory lock of a session or, with WithLease, a
// lease. It opens separate connections, configured like those of pool, and ctx bounds the waits for
// the lock. All options are valid but AllowNewer, AllowOutOfOrder and AllowChanged.
//
// The lock is named as that of Run, after the version table. If driver's is not schema_migrations
// in the first schema of the connection's search_path, pass WithVersionTable.
//
// golang-migrate's LockTimeout must be longer than WithTimeout, as its default is. Otherwise the
// lock may be granted after golang-migrate has given up, and is then held until Close.
//
// golang-migrate's drivers acquire their own lock while they are opened, and behind a pooler in
// transaction mode they may leave it behind: use Run there.
func Wrap(ctx context.Context, driver database.Driver, pool *pgxpool.Pool, opts ...Option) (*Driver, error) {
	cfg, err := newConfig(append([]Option{WithTimeout(migrate.DefaultLockTimeout * 4 / 5)}, opts...))
	switch {
	case err != nil:
		return nil, err
	case driver == nil || pool == nil:
		return nil, errs.InvalidOption("runner", "Wrap: the driver or the pool is nil")
	case cfg.onlyRun != "":
		return nil, errs.InvalidOption("runner", "Wrap: %s has no effect: must be an option of Run", cfg.onlyRun)
	}
	own, err := cfg.ownPool(ctx, pool)
	if err != nil {
		return nil, err
	}
	if _, err := cfg.openVersionTable(ctx, own); err != nil {
		own.Close()
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	return &Driver{Driver: driver, ctx: ctx, cancel: cancel, cfg: cfg, pool: own}, nil
}

// Lock waits for the lock, and its error is a *pglock.WaitError that names the holder, or
// database.ErrLocked if this Driver holds the lock.
func (d *Driver) Lock() (err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.held != nil {
		return database.ErrLocked
	}
	d.held, err = d.cfg.wait(d.ctx, d.pool)
	return err
}

// Unlock releases the lock. The error wraps pglock.ErrLost if the lock was lost before, since
// another process may then have migrated at the same time.
func (d *Driver) Unlock() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.held == nil {
		return database.ErrNotLocked
	}
	held := d.held
	d.held = nil
	return release(d.ctx, held)
}

// Close ends a wait for the lock, releases the lock if it is held, and closes the wrapped driver.
func (d *Driver) Close() error {
	d.cancel()
	err := d.Unlock()
	if errors.Is(err, database.ErrNotLocked) {
		err = nil
	}
	d.pool.Close()
	return errs.Join(err, d.Driver.Close())
}
