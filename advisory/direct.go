package advisory

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// EnsureDirect returns ErrPooled (wrapped or not) if a pooler lends the server's sessions to conn for a transaction
// at a time, so that a session's lock would stay behind in a session that serves others. Acquire does that by itself;
// this is for those who lock on a connection of their own. It may open a second connection for a moment.
// ctx bounds it, and does not close conn unless the server falls silent.
func EnsureDirect(ctx context.Context, conn *pgx.Conn) error {
	pid, err := servedBy(ctx, conn)
	if err != nil {
		return err
	}
	return refusePooler(ctx, conn, pid)
}
