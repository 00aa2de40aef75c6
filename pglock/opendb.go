package pglock

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/pgtx"
	"github.com/pglock/pglock-go/internal/timing"
	"github.com/pglock/pglock-go/leasetable"
)

// OpenDB is Open for a program that has a *sql.DB and no pgx pool. db must run on pgx's stdlib
// driver, directly or through a driver that wraps it and passes arguments on unchanged.
//
//	db, err := sql.Open("pgx", os.Getenv("DATABASE_URL")) // import _ "github.com/jackc/pgx/v5/stdlib"
//	...
//	client, err := pglock.OpenDB(ctx, db)
//
// The client has everything that a client of Open has. Guard and Bind take a *sql.Tx through
// sqltx.Wrap. DoTx runs on a connection of db and passes a pgx.Tx; for a *sql.Tx see [Client.DoTx].
// migrations.UpDB creates the tables.
//
// OpenDB takes one connection out of db, reads its configuration (server, user, execution mode,
// query tracer), and returns it. Leases use connections of the client's own with that configuration,
// so that they need none of db, whatever SetMaxOpenConns is. Close the client before db; if db is
// closed first, leases go on, but DoTx fails.
//
// Two things can't be read from db. The hooks of stdlib.OpenDB do not run for the client's own
// connections: OptionBeforeConnect, which may set short-lived passwords, and OptionAfterConnect,
// which may set a role. And if db stands on a pool (stdlib.OpenDBFromPool), nor do those of the
// pool. A program with such hooks should call Open with a pgxpool.Pool that has the same hooks. Open
// only reads the configuration of that pool, which opens no connection before DoTx.
//
// The errors are those of Open. The error wraps advisory.ErrDriver if db runs on another driver, such as
// lib/pq, and advisory.ErrPoolExhausted if db has lent no connection for 10 s, because the program holds all
// of them. ctx bounds OpenDB only.
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
	c, err := open(ctx, connections, cfg)
	if err != nil {
		return nil, err
	}
	c.db = db
	return c, nil
}

// configOf returns the configuration of a pool with the connections of db.
func configOf(ctx context.Context, db *sql.DB) (*pgxpool.Config, error) {
	bounded, cancel := context.WithTimeoutCause(ctx, timing.InitBound, errs.ErrPoolExhausted)
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
	case !errors.Is(context.Cause(bounded), errs.ErrPoolExhausted):
	case stats.MaxOpenConnections > 0 && stats.InUse >= stats.MaxOpenConnections:
		return nil, errs.Errorf("pglock: open: %w: all %d connections of the *sql.DB were in use for %v: return one first, or raise SetMaxOpenConns",
			errs.ErrPoolExhausted, stats.MaxOpenConnections, timing.InitBound)
	}
	if pgtx.LoginRejected(err) {
		return nil, errs.Errorf("pglock: open: %w: %w", ErrLogin, err)
	}
	if leasetable.Transient(err) {
		return nil, errs.Errorf("pglock: open: %w: %w", ErrUnavailable, err)
	}
	return nil, errs.Errorf("pglock: open: %w", err)
}
