package advisory

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/pgtx"
)

// lender lends a connection for one transaction of Do, and waits for one no longer than wait. The
// caller must call release.
type lender func(ctx context.Context, c *call, wait time.Duration) (conn DB, release func(), err error)

// lendFrom lends connections of a pool, or the one connection db.
func lendFrom(db DB) lender {
	return func(ctx context.Context, c *call, wait time.Duration) (DB, func(), error) {
		pool, ok := db.(*pgxpool.Pool)
		if !ok {
			return db, func() {}, nil
		}
		conn, err := c.connFrom(ctx, pool, wait)
		if err != nil {
			return nil, nil, err
		}
		return conn, conn.Release, nil
	}
}

// lendFromDB lends connections of a *sql.DB.
func lendFromDB(db *sql.DB) lender {
	return func(ctx context.Context, c *call, wait time.Duration) (DB, func(), error) {
		bounded, cancel := context.WithTimeoutCause(ctx, wait, ErrPoolExhausted)
		defer cancel()
		begun := time.Now()
		conn, giveBack, err := pgtx.Borrow(bounded, db)
		c.poolWaited += time.Since(begun)
		if err == nil {
			return conn, giveBack, nil
		}
		stats := db.Stats()
		return nil, nil, c.noConn(ctx, bounded, err, busyPool{
			name: "the *sql.DB", remedy: "SetMaxOpenConns", wait: wait,
			full: stats.MaxOpenConnections > 0 && stats.InUse >= stats.MaxOpenConnections, conns: stats.MaxOpenConnections,
		})
	}
}

// connFrom takes a connection out of the pool, and waits for one until ctx is done and no longer
// than wait.
func (c *call) connFrom(ctx context.Context, pool *pgxpool.Pool, wait time.Duration) (*pgxpool.Conn, error) {
	bounded, cancel := context.WithTimeoutCause(ctx, wait, ErrPoolExhausted)
	defer cancel()
	begun := time.Now()
	conn, err := pool.Acquire(bounded)
	c.poolWaited += time.Since(begun)
	if err == nil {
		return conn, nil
	}
	stat, server := pool.Stat(), pool.Config().ConnConfig
	return nil, c.noConn(ctx, bounded, err, busyPool{
		name: fmt.Sprintf("the pool to %s:%d/%s", server.Host, server.Port, server.Database), remedy: "MaxConns", wait: wait,
		full: stat.TotalConns() >= stat.MaxConns() && stat.AcquiredConns() >= stat.MaxConns(), conns: int(stat.MaxConns()),
	})
}

// busyPool describes a pool that has lent no connection in time.
type busyPool struct {
	name, remedy string
	wait         time.Duration
	full         bool // all its connections are in use
	conns        int  // how many it may have
}

// noConn returns the error for a pool that has lent no connection. bounded is ctx with the time
// limit of WithPoolWait.
func (c *call) noConn(ctx, bounded context.Context, err error, pool busyPool) error {
	switch {
	case ctx.Err() != nil:
		return c.notAcquired(errs.ContextErr(ctx))
	case !errors.Is(context.Cause(bounded), ErrPoolExhausted):
		return errs.Errorf("advisory: lock %s: %w", describeAll(c.keys, c.names), pgtx.ExplainLogin(err))
	case !pool.full:
		return errs.Errorf("advisory: no connection of %s within %v: %w", pool.name, pool.wait, err)
	}
	return c.notAcquired(errs.Errorf("%w: all %d connections of %s were in use for %v: "+
		"return them before you wait for a lock, or raise %s", ErrPoolExhausted, pool.conns, pool.name, pool.wait, pool.remedy))
}
