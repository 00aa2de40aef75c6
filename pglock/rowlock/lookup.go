package rowlock

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/internal/await"
)

// lookUp completes a *TableError with what does not exist: the server names it in the text of
// its message only. If all is there, then a trigger or a view stumbled over something of its
// own, and the error is the server's. Other errors pass.
func (c *call) lookUp(ctx context.Context, failure error) error {
	var table *TableError
	if !errors.As(failure, &table) {
		return failure
	}
	known, err := c.knownColumns(ctx)
	switch {
	case err != nil:
		return errors.Join(failure, err)
	case len(known) == 0:
		return failure
	}
	for _, name := range c.columns {
		if !slices.Contains(known, name) && !slices.Contains(table.Columns, name) {
			table.Columns = append(table.Columns, name)
		}
	}
	if len(table.Columns) == 0 {
		return fmt.Errorf("rowlock: %s: %w", c.table, table.Cause)
	}
	return failure
}

// knownColumns returns the columns that the table has, in a savepoint of its own.
func (c *call) knownColumns(ctx context.Context) (names []string, err error) {
	err = await.CleanUp(ctx, func(ctx context.Context) error {
		if _, err := c.tx.Exec(ctx, setSavepoint); err != nil {
			return err
		}
		found, err := c.tx.Query(ctx, columnsSQL, c.table.String())
		if err == nil {
			names, err = pgx.CollectRows(found, pgx.RowTo[string])
		}
		if err != nil {
			return errors.Join(err, c.undo(ctx))
		}
		_, err = c.tx.Exec(ctx, forgetSavepoint)
		return err
	})
	return names, err
}

const columnsSQL = "SELECT attname::text FROM pg_attribute WHERE attrelid = to_regclass($1::text) AND NOT attisdropped"
