package migrations

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/backoff"
	"github.com/pglock/pglock-go/internal/errs"
)

// pollInterval is the mean time between two attempts to acquire the lock.
const pollInterval = 60 * time.Millisecond

// withLock runs fn while a transaction holds an advisory lock on the schema's name. It polls: a
// session that blocks in pg_advisory_lock holds a snapshot, which CREATE INDEX CONCURRENTLY waits
// for, and it can outlive its caller. golang-migrate's own lock does both, but it is never
// contended under this lock.
func withLock(ctx context.Context, own *pgxpool.Pool, cfg config, fn func() error) error {
	for {
		locked, err := tryWithLock(ctx, own, cfg, fn)
		if locked || err != nil {
			return err
		}
		if backoff.Sleep(ctx, backoff.Jitter(pollInterval)) != nil {
			return errs.Errorf("migrations: schema %q: gave up while another process migrates it: %w", cfg.schema, context.Cause(ctx))
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

	if locked, err = tryLock(ctx, tx, cfg.schema); err != nil || !locked {
		return false, err
	}
	return true, fn()
}

func tryLock(ctx context.Context, tx pgx.Tx, name string) (locked bool, err error) {
	_, err = tx.Exec(ctx, "SELECT set_config('idle_in_transaction_session_timeout', '0', true)")
	// The server computes the hash, so that programs in other languages get the same key.
	err = errs.Join(err, tx.QueryRow(ctx,
		"SELECT pg_try_advisory_xact_lock(hashtextextended('pglock migrations of ' || $1::text, 0))", name).Scan(&locked))
	if err != nil {
		return false, errs.Errorf("migrations: %w", err)
	}
	return locked, nil
}
