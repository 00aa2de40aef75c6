package advisory

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock/pglock-go/internal/await"
)

// rollBack ends the transaction, whatever became of ctx; where that fails, pgx ends the
// connection too.
func rollBack(ctx context.Context, tx pgx.Tx) error {
	err := await.CleanUp(ctx, tx.Rollback)
	if err == nil || errors.Is(err, pgx.ErrTxClosed) {
		return nil
	}
	return fmt.Errorf("advisory: rollback, so that the connection was closed: %w", err)
}

// commit ends the transaction, and tells when nobody knows how.
func commit(ctx context.Context, tx pgx.Tx) error {
	if conn := connOf(tx); conn != nil && !conn.IsClosed() && conn.PgConn().TxStatus() == 'I' {
		return errors.Join(fmt.Errorf("%w: the function has ended it, and with it the lock", ErrTx), rollBack(ctx, tx))
	}
	err := tx.Commit(ctx)
	switch state := sqlState(err); {
	case err == nil:
		return nil
	case errors.Is(err, pgx.ErrTxClosed):
		return fmt.Errorf("%w: the function has ended it: %w", ErrTx, err)
	case errors.Is(err, pgx.ErrTxCommitRollback), pgconn.SafeToRetry(err):
		return fmt.Errorf("advisory: rolled back: %w", err)
	case state != "" && !strings.HasPrefix(state, "08") && !strings.HasPrefix(state, "57P"):
		return fmt.Errorf("advisory: rolled back: %w", err)
	}
	return fmt.Errorf("%w: %w", ErrCommitUnknown, err)
}
