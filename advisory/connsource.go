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

// connOf returns a connection for one transaction of Do, which is of a pool, of a *sql.DB, or db
// itself, and which the caller must return by release.
func (c *call) connOf(ctx context.Context, db any) (conn DB, release func(), err error) {
	switch db := db.(type) {
	case *pgxpool.Pool:
		conn, err := c.connFrom(ctx, db)
		if err != nil {
			return nil, nil, err
		}
		return conn, conn.Release, nil
	case *sql.DB:
		err = c.waitForConn(ctx, func(ctx context.Context) (err error) {
			conn, release, err = pgtx.Borrow(ctx, db)
			return err
		}, func() poolStats {
			s := db.Stats()
			return poolStats{"the *sql.DB", "SetMaxOpenConns", s.MaxOpenConnections > 0 && s.InUse >= s.MaxOpenConnections, s.MaxOpenConnections}
		})
		return conn, release, err
	}
	return db.(DB), func() {}, nil
}

// connFrom acquires a connection of the pool.
func (c *call) connFrom(ctx context.Context, pool *pgxpool.Pool) (conn *pgxpool.Conn, err error) {
	err = c.waitForConn(ctx, func(ctx context.Context) (err error) {
		conn, err = pool.Acquire(ctx)
		return err
	}, func() poolStats {
		s, server := pool.Stat(), pool.Config().ConnConfig
		name := fmt.Sprintf("the pool to %s:%d/%s", server.Host, server.Port, server.Database)
		return poolStats{name, "MaxConns", s.TotalConns() >= s.MaxConns() && s.AcquiredConns() >= s.MaxConns(), int(s.MaxConns())}
	})
	return conn, err
}

// poolStats describes a pool that had no connection in time.
type poolStats struct {
	name, remedy string
	full         bool // all its connections are in use
	conns        int  // how many it may have
}

// waitForConn runs acquire until ctx is done, and no longer than WithPoolWait allows.
func (c *call) waitForConn(ctx context.Context, acquire func(ctx context.Context) error, stats func() poolStats) error {
	bounded, cancel := context.WithTimeoutCause(ctx, c.cfg.poolWait, ErrPoolExhausted)
	defer cancel()
	begun := time.Now()
	err := acquire(bounded)
	c.poolWaited += time.Since(begun)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return c.notAcquired(errs.ContextErr(ctx))
	case !errors.Is(context.Cause(bounded), ErrPoolExhausted):
		return errs.Errorf("advisory: lock %s: %w", describeAll(c.keys), pgtx.ExplainLogin(err))
	}
	pool := stats()
	if !pool.full {
		return errs.Errorf("advisory: no connection of %s within %v: %w", pool.name, c.cfg.poolWait, err)
	}
	return c.notAcquired(errs.Errorf("%w: all %d connections of %s were in use for %v: "+
		"return them before you wait for a lock, or raise %s", ErrPoolExhausted, pool.conns, pool.name, c.cfg.poolWait, pool.remedy))
}
