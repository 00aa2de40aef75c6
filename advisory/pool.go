package advisory

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/await"
)

// fromPool is fromPool, and leaves the time that it takes out of the call's time-out.
func (c *call) fromPool(ctx context.Context, pool *pgxpool.Pool, wait time.Duration) (*pgxpool.Conn, error) {
	asked := time.Now()
	conn, err := fromPool(ctx, pool, wait)
	c.notCounted += time.Since(asked)
	return conn, err
}

// fromPool takes a connection out of the pool, and waits for one no longer than wait.
func fromPool(ctx context.Context, pool *pgxpool.Pool, wait time.Duration) (*pgxpool.Conn, error) {
	bounded, cancel := context.WithTimeoutCause(ctx, wait, ErrPoolExhausted)
	defer cancel()
	conn, err := pool.Acquire(bounded)
	switch {
	case err == nil:
		return conn, nil
	case ctx.Err() != nil:
		return nil, await.Ended(ctx)
	case !errors.Is(context.Cause(bounded), ErrPoolExhausted):
		return nil, err
	}
	stat, server := pool.Stat(), pool.Config().ConnConfig
	if stat.TotalConns() < stat.MaxConns() || stat.AcquiredConns() < stat.MaxConns() {
		return nil, fmt.Errorf("advisory: no connection to %s:%d/%s within %v: %w",
			server.Host, server.Port, server.Database, wait, err)
	}
	return nil, fmt.Errorf("%w: all %d connections of the pool to %s:%d/%s were in use for %v: return them before waiting for a lock, or raise MaxConns",
		ErrPoolExhausted, stat.MaxConns(), server.Host, server.Port, server.Database, wait)
}
