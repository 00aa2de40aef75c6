package advisory_test

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/internal/pgtest"
)

// TestDoTellsThatTheFunctionEndedTheTransaction: whatever the function did after that was done without the lock.
func TestDoTellsThatTheFunctionEndedTheTransaction(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	key := advisory.NewKey("ended", t.Name())
	for _, sql := range []string{"COMMIT", "ROLLBACK", "END; SELECT 1"} {
		for _, options := range [][]advisory.DoOption{nil, {advisory.WithPolling()}, {advisory.WithIsolation(pgx.Serializable)}} {
			err := advisory.Do(t.Context(), pool, key, func(ctx context.Context, tx pgx.Tx) error {
				_, err := tx.Exec(ctx, sql)
				return err
			}, options...)
			if !errors.Is(err, advisory.ErrTx) || errors.Is(err, advisory.ErrCommitUnknown) {
				t.Errorf("%s: %v", sql, err)
			}
		}
	}
	var mine error
	err := advisory.Do(t.Context(), pool, key, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "ROLLBACK")
		mine = errors.Join(err, errors.New("mine"))
		return mine
	})
	if !errors.Is(err, mine) {
		t.Errorf("the function's own error: %v", err)
	}
	whole(t, pool)
}
