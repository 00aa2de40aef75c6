package leasetable

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/pgtx"
	"github.com/pglock/pglock-go/leasetable/internal/store"
	"github.com/pglock/pglock-go/leasetable/internal/timing"
)

// OpenDB is Open for a *sql.DB on pgx's stdlib driver. It takes one connection out of db, reads
// its configuration, and returns it. From then on the client does not use db: its own connections
// have that configuration, and renewals go on when db is exhausted or closed. It does not close db.
//
// The configuration has the server, the user, the execution mode and the query tracer. The hooks of
// stdlib's options can't be read from db. See pglock.OpenDB for what that means.
//
// The errors are those of Open. OpenDB also fails with ErrDriver if db runs on another driver, and
// with ErrPoolExhausted if db has lent no connection for 10 s. ctx bounds OpenDB only.
func OpenDB(ctx context.Context, db *sql.DB, opts ...Option) (*Client, error) {
	cfg, err := newClientConfig(opts)
	if err != nil {
		return nil, err
	}
	if db == nil {
		return nil, invalidOption("open: the *sql.DB is nil: pass one on pgx's stdlib driver")
	}
	connections, err := configOf(ctx, db)
	if err != nil {
		return nil, err
	}
	return open(ctx, connections, cfg)
}

// configOf returns the configuration of a pool with the connections of db.
func configOf(ctx context.Context, db *sql.DB) (*pgxpool.Config, error) {
	bounded, cancel := context.WithTimeoutCause(ctx, timing.InitBound, ErrPoolExhausted)
	defer cancel()
	conn, giveBack, err := pgtx.Borrow(bounded, db)
	if err == nil {
		defer giveBack()
		// The last three are pgxpool's defaults.
		return &pgxpool.Config{
			ConnConfig: conn.Config(), MaxConnLifetime: time.Hour, MaxConnIdleTime: 30 * time.Minute, HealthCheckPeriod: time.Minute,
		}, nil
	}
	stats := db.Stats()
	switch {
	case ctx.Err() != nil:
		return nil, errs.Errorf("pglock: open: %w: %w", ErrUnavailable, errs.ContextErr(ctx))
	case !errors.Is(context.Cause(bounded), ErrPoolExhausted):
	case stats.MaxOpenConnections > 0 && stats.InUse >= stats.MaxOpenConnections:
		return nil, errs.Errorf("pglock: open: %w: all %d connections of the *sql.DB were in use for %v: return one first, or raise SetMaxOpenConns",
			ErrPoolExhausted, stats.MaxOpenConnections, timing.InitBound)
	}
	if pgtx.LoginRejected(err) {
		return nil, errs.Errorf("pglock: open: %w: %w", ErrLogin, err)
	}
	if store.Transient(err) {
		return nil, errs.Errorf("pglock: open: %w: %w", ErrUnavailable, err)
	}
	return nil, errs.Errorf("pglock: open: %w", err)
}
