package migrations

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// locked runs fn while a transaction of ours holds an advisory lock on the
// schema's name. It polls: a blocked pg_advisory_lock would hold a snapshot,
// which CREATE INDEX CONCURRENTLY waits for, and would outlive its caller
// (golang-migrate's own lock does both; under ours it is never contended).
func locked(ctx context.Context, own *pgxpool.Pool, cfg config, fn func() error) error {
	for {
		got, err := tryLocked(ctx, own, cfg, fn)
		if got || err != nil {
			return err
		}
		pause := time.NewTimer(20*time.Millisecond + rand.N(80*time.Millisecond))
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return fmt.Errorf("migrations: gave up while another process migrates schema %q: %w", cfg.schema, context.Cause(ctx))
		}
	}
}

func tryLocked(ctx context.Context, own *pgxpool.Pool, cfg config, fn func() error) (got bool, err error) {
	tx, err := own.Begin(ctx)
	if err != nil {
		return false, fmt.Errorf("migrations: %w", err)
	}
	// The transaction wrote nothing: rolling back is how the lock is let go, and
	// where that fails the pool closes the connection, which does it as well.
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()

	if err := try(ctx, tx, cfg.schema, &got); err != nil || !got {
		return false, err
	}
	return true, fn()
}

func try(ctx context.Context, tx pgx.Tx, name string, got *bool) error {
	// The server hashes, so that all who migrate in it agree on the key.
	_, err := tx.Exec(ctx, "SELECT set_config('idle_in_transaction_session_timeout', '0', true)")
	err = errors.Join(err, tx.QueryRow(ctx,
		"SELECT pg_try_advisory_xact_lock(hashtextextended('pglock migrations of ' || $1::text, 0))", name).Scan(got))
	if err != nil {
		return fmt.Errorf("migrations: %w", err)
	}
	return nil
}
