package migrations

import (
	"context"
	"database/sql"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/pgtx"
)

// UpDB is Up for a program that has a *sql.DB on pgx's stdlib driver and no pgx pool. It takes one
// connection out of db, reads its configuration, returns it, and migrates on separate connections.
// The hooks of stdlib's options do not run for these: see pglock.OpenDB.
//
// The errors are those of Up. The error wraps ErrDriver if db runs on another driver.
func UpDB(ctx context.Context, db *sql.DB, opts ...Option) error {
	if db == nil {
		return errs.InvalidOption("migrations", "the *sql.DB is nil: pass one on pgx's stdlib driver")
	}
	conn, release, err := pgtx.Borrow(ctx, db)
	if err != nil {
		return errs.Errorf("migrations: %w", pgtx.ExplainLogin(err))
	}
	config := conn.Config()
	release()
	pooled, err := pgxpool.ParseConfig(config.ConnString()) // pgxpool takes only what it has parsed
	if err != nil {
		return errs.Errorf("migrations: %w", err)
	}
	pooled.ConnConfig = config
	pool, err := pgxpool.NewWithConfig(ctx, pooled) // opens no connection before Up reads its configuration
	if err != nil {
		return errs.Errorf("migrations: %w", err)
	}
	defer pool.Close()
	return Up(ctx, pool, opts...)
}
