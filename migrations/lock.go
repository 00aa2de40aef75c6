package migrations

import (
	"context"
	_ "embed"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/backoff"
	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/pgtx"
	"github.com/pglock/pglock-go/internal/schema"
)

const (
	// pollInterval is the mean time between two attempts to acquire the lock.
	pollInterval = 60 * time.Millisecond
	// patience is how long withLock waits before it warns.
	patience = 5 * time.Second
)

//go:embed sql/read_holder.sql
var readHolderSQL string

// withLock runs fn while a transaction holds a lock on the version table. Reading the table does
// not conflict with it. Only a role that may change the table can acquire it, while any role can
// hold an advisory lock for as long as it likes. It polls: a session that waits for a lock has a
// snapshot, for which CREATE INDEX CONCURRENTLY waits, and it can outlive its caller.
func withLock(ctx context.Context, own *pgxpool.Pool, cfg config, fn func() error) error {
	warned := false
	for began := time.Now(); ; {
		locked, err := tryWithLock(ctx, own, cfg, fn)
		if locked || err != nil {
			return err
		}
		if !warned && time.Since(began) >= patience {
			warned = true
			slog.WarnContext(ctx, "pglock: still waiting for another process that migrates the schema",
				"schema", cfg.schema, "waited", time.Since(began).Round(time.Second), "holder", holder(ctx, own, cfg))
		}
		if backoff.Sleep(ctx, backoff.Jitter(pollInterval)) != nil {
			return errs.Errorf("migrations: schema %q: gave up while another process migrates it (%s): %w",
				cfg.schema, holder(ctx, own, cfg), context.Cause(ctx))
		}
	}
}

// tryWithLock runs fn if the lock is free.
func tryWithLock(ctx context.Context, own *pgxpool.Pool, cfg config, fn func() error) (locked bool, err error) {
	tx, err := own.Begin(ctx)
	if err != nil {
		return false, cfg.explain(err)
	}
	// The rollback releases the lock; the transaction wrote nothing. If the rollback fails, the
	// pool closes the connection, which releases the lock too.
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()

	_, err = tx.Exec(ctx, "SET LOCAL idle_in_transaction_session_timeout = 0")
	if err == nil {
		_, err = tx.Exec(ctx, "LOCK TABLE "+cfg.versionTable()+" IN SHARE UPDATE EXCLUSIVE MODE NOWAIT")
	}
	switch {
	case pgtx.SQLState(err) == pgtx.LockNotAvailable:
		return false, nil
	case err != nil:
		return false, cfg.explain(err)
	}
	return true, fn()
}

// holder describes the session that holds the lock. ctx may have ended.
func holder(ctx context.Context, own *pgxpool.Pool, cfg config) string {
	var pid uint32
	var role, application string
	err := pgtx.CleanUp(ctx, func(ctx context.Context) error {
		return own.QueryRow(ctx, readHolderSQL, cfg.versionTable()).Scan(&pid, &role, &application)
	})
	if err != nil {
		return "its session is unknown"
	}
	return fmt.Sprintf("session %d, role %q, application %q", pid, role, application)
}

// versionTable returns the quoted name of the version table.
func (c config) versionTable() string { return schema.Quote(c.schema) + "." + schema.VersionTable }
