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
	"github.com/pglock/pglock-go/pglock/internal/link"
)

// OpenDB is Open for a program that has a *sql.DB and no pgx pool. The db must use pgx's stdlib
// driver, or one that wraps it and passes arguments on unchanged. Otherwise the error wraps
// advisory.ErrDriver.
//
//	db, err := sql.Open("pgx", os.Getenv("DATABASE_URL")) // import _ "github.com/jackc/pgx/v5/stdlib"
//	...
//	client, err := pglock.OpenDB(ctx, db)
//
// Guard and Bind take a *sql.Tx through sqltx.Wrap. [Client.DoTx] runs on a connection of db and
// passes a pgx.Tx. migrations.UpDB creates the tables.
//
// OpenDB reads the configuration (server, user, execution mode, query tracer) of one connection of
// db. If the program holds all of them for 10 s, the error wraps advisory.ErrPoolExhausted. Leases
// use the client's own connections with that configuration, and continue after db is closed, while
// DoTx fails.
//
// Hooks of db (OptionBeforeConnect, OptionAfterConnect, those of stdlib.OpenDBFromPool) can't be
// read, and do not run for the client's own connections. A program whose hooks set short-lived
// passwords or a role passes a pgxpool.Pool with them to Open.
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
	return openOn(ctx, tables{db: db}.connect(connections, cfg), cfg)
}

func configOf(ctx context.Context, db *sql.DB) (*pgxpool.Config, error) {
	bounded, cancel := context.WithTimeoutCause(ctx, timing.InitBound, errs.ErrPoolExhausted)
	defer cancel()
	conn, release, err := pgtx.Borrow(bounded, db)
	if err == nil {
		defer release()
		// The last three values are the defaults of pgxpool.
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
	if err = pgtx.ExplainLogin(err); link.Transient(err) {
		return nil, errs.Errorf("pglock: open: %w: %w", ErrUnavailable, err)
	}
	return nil, errs.Errorf("pglock: open: %w", err)
}
