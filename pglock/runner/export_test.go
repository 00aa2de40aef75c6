package runner

import (
	"context"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/pglock"
)

// WithLeaseTo calls fn with the lease when it is granted.
func WithLeaseTo(fn func(l *pglock.Lease)) Option {
	return func(c *config) error {
		c.granted = func(all heldLocks) { fn(all[0].(*pglock.Lease)) }
		return nil
	}
}

// WithReports logs at each interval who holds the lock during a wait.
func WithReports(interval time.Duration, l *slog.Logger) Option {
	return func(c *config) error {
		c.interval, c.logger = interval, l
		return nil
	}
}

// WithLost closes lost when the run has lost its last lock.
func WithLost(lost chan<- struct{}) Option {
	return func(c *config) error {
		c.granted = func(all heldLocks) {
			held := all[len(all)-1].(interface{ Context() context.Context })
			context.AfterFunc(held.Context(), func() { close(lost) })
		}
		return nil
	}
}

// CreateVersionTable creates the version table of that name in schema public.
func CreateVersionTable(ctx context.Context, pool *pgxpool.Pool, table string) error {
	return versionTable{quoted: pgx.Identifier{"public", table}.Sanitize()}.create(ctx, pool, false)
}
