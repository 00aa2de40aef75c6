package migrations

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// SetPatience sets how long a driver keeps a lock that nobody uses.
func SetPatience(d *Driver, p time.Duration) { d.patience = p }

// GivenBack reports whether the lock came too late and was given back.
func GivenBack(d *Driver) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, ok := d.held.(unusedLock)
	return ok
}

// Granted reports whether the lock was granted, in time or not.
func Granted(d *Driver) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.held != nil
}

// Lost reports whether the driver knows that its lock is lost.
func Lost(d *Driver) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.held != nil && d.held.Err() != nil
}

// RunObserved is Run that closes lost when it has lost its lock.
func RunObserved(ctx context.Context, source Source, pool *pgxpool.Pool, lost chan<- struct{}, opts ...RunOption) error {
	return Run(ctx, source, pool, append(opts, runOption(func(c *runConfig) error {
		c.locked = func(h hold) { context.AfterFunc(h.Context(), func() { close(lost) }) }
		return nil
	}))...)
}
