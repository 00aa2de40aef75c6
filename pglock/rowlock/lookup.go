package rowlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/pgtx"
)

// completeTableError adds to a *TableError what does not exist: the server names it only in the
// text of its message. If everything exists, a trigger or a view has failed on something of its
// own, and the server's error is returned instead. Other errors are returned unchanged.
func (c *call) completeTableError(ctx context.Context, failure error) error {
	var table *TableError
	if !errors.As(failure, &table) {
		return failure
	}
	known, err := c.knownColumns(ctx)
	switch {
	case err != nil:
		return errors.Join(failure, err)
	case len(known) == 0:
		table.Hint = c.table.hint()
		return failure
	}
	for _, name := range c.columns {
		if !slices.Contains(known, name) && !slices.Contains(table.Columns, name) {
			table.Columns = append(table.Columns, name)
		}
	}
	table.Hint = columnHint(table.Columns)
	if len(table.Columns) == 0 {
		return errs.Errorf("rowlock: %s: %w", c.table, table.Cause)
	}
	return failure
}

const columnsSQL = "SELECT attname::text FROM pg_attribute WHERE attrelid = to_regclass($1::text) AND NOT attisdropped"

// knownColumns returns the columns of the table, and none if there is no such table.
func (c *call) knownColumns(ctx context.Context) (names []string, err error) {
	err = pgtx.CleanUp(ctx, func(ctx context.Context) error {
		return savepoint.Run(ctx, c.tx, func(ctx context.Context) error {
			found, err := c.tx.Query(ctx, columnsSQL, c.table.String())
			if err != nil {
				return err
			}
			names, err = pgx.CollectRows(found, pgx.RowTo[string])
			return err
		})
	})
	return names, err
}

// hint says how to write a table's name that was passed as one identifier with a dot, as in
// "public.stock". Such a name is possible, so the hint comes only if there is no such table.
func (t Table) hint() string {
	parts := strings.Split(strings.Join(t.Name, "."), ".")
	if len(parts) == len(t.Name) {
		return ""
	}
	return fmt.Sprintf("a part of %#v contains a dot: write %#v", t.Name, pgx.Identifier(parts))
}

// columnHint is hint for columns that the table lacks.
func columnHint(columns []string) string {
	for _, name := range columns {
		if dot := strings.LastIndexByte(name, '.'); dot >= 0 {
			return fmt.Sprintf("%q contains a dot: write %q, without the table", name, name[dot+1:])
		}
	}
	return ""
}
