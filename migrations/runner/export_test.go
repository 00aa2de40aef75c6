package runner

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/pglock"
)

// WithLeaseTo calls fn with the lease when it is granted.
func WithLeaseTo(fn func(l *pglock.Lease)) WaitOption {
	return waitOption(func(c *waitConfig) error {
		c.granted = func(h heldLock) { fn(h.(*pglock.Lease)) }
		return nil
	})
}

// SetUnusedTimeout sets how long a driver keeps a lock that is not used.
func SetUnusedTimeout(d *Driver, timeout time.Duration) { d.unusedTimeout = timeout }

// ReleasedUnused reports whether the driver released the lock because it was not used.
func ReleasedUnused(d *Driver) bool {
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
	return Run(ctx, source, pool, append(opts, waitOption(func(c *waitConfig) error {
		c.granted = func(h heldLock) {
			context.AfterFunc(h.(interface{ Context() context.Context }).Context(), func() { close(lost) })
		}
		return nil
	}))...)
}

// CreateVersionTable creates the version table of that name in schema public.
func CreateVersionTable(ctx context.Context, pool *pgxpool.Pool, table string) error {
	return versionTable{schema: "public", table: table, quoted: quoteTable("public", table)}.create(ctx, pool)
}
