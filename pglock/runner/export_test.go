package runner

import (
	"context"
	"log/slog"
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

// WithReports logs at each interval who holds the lock during a wait.
func WithReports(interval time.Duration, l *slog.Logger) WaitOption {
	return waitOption(func(c *waitConfig) error {
		c.interval, c.logger = interval, l
		return nil
	})
}

// Lost is closed when the driver's lock is lost.
func Lost(d *Driver) <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.held.(interface{ Context() context.Context }).Context().Done()
}

// RunObserved is Run that closes lost when it has lost its lock.
func RunObserved(ctx context.Context, source Source, pool *pgxpool.Pool, lost chan<- struct{}, opts ...RunOption) error {
	return Run(ctx, source, pool, append(opts, waitOption(func(c *waitConfig) error {
		c.granted = func(h heldLock) {
			if both, ok := h.(*bothHeld); ok {
				h = both.other
			}
			context.AfterFunc(h.(interface{ Context() context.Context }).Context(), func() { close(lost) })
		}
		return nil
	}))...)
}

// CreateVersionTable creates the version table of that name in schema public.
func CreateVersionTable(ctx context.Context, pool *pgxpool.Pool, table string) error {
	return versionTable{schema: "public", table: table, quoted: quoteTable("public", table)}.create(ctx, pool)
}
