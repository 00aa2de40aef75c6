package rowlock

import (
	"context"

	"github.com/pglock/pglock-go/internal/await"
)

// serializationFailure is also what a row answers, at READ COMMITTED, that moved to another partition while it was waited for.
const serializationFailure = "40001"

// run runs op in a savepoint, and again where a row has moved: the next statement sees it where it is.
func (c *call) run(ctx context.Context, op func(ctx context.Context) error) (err error) {
	for range mostAttempts {
		if err = c.once(ctx, op); sqlState(err) != serializationFailure || !c.anew(ctx) {
			return err
		}
	}
	return err
}

// anew reports whether each statement of the transaction has a snapshot of its own.
func (c *call) anew(ctx context.Context) bool {
	var level string
	err := await.CleanUp(ctx, func(ctx context.Context) error {
		return c.tx.QueryRow(ctx, "SELECT current_setting('transaction_isolation')").Scan(&level)
	})
	return err == nil && (level == "read committed" || level == "read uncommitted")
}
