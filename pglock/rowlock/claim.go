package rowlock

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// Claim locks and returns up to limit rows of a queue that no other transaction has locked, in
// the order of OrderBy. It waits for none of them. Where and Due select the rows that are ready.
//
// The rows belong to tx until it ends. Delete them in tx, or change the columns that Where
// compares, and commit: then the work is done. If tx is rolled back, or the process or its
// connection dies, the rows are unlocked and unchanged, at once or when the server notices. So
// each row is worked on at least once, and its changes in the database are made exactly once.
//
// Fewer rows than limit do not mean that the queue is empty: other transactions may hold some, or
// have just changed them. No row is not an error.
//
// T, failures and ctx are as for ForUpdate. Claim does wait for a lock on the whole table:
// WithTimeout and NoWait bound that.
func Claim[T any](ctx context.Context, tx Tx, table Table, limit int, opts ...ClaimOption) ([]T, error) {
	c := &call{tx: tx, table: table, begun: time.Now()}
	for _, o := range opts {
		if err := o.applyClaim(&c.cfg); err != nil {
			return nil, err
		}
	}
	if err := c.check(); err != nil {
		return nil, err
	}
	if limit <= 0 {
		return nil, invalidOption("limit %d: must be positive", limit)
	}
	columns, err := columnsOf[T]()
	if err != nil {
		return nil, err
	}
	c.setColumns(columns)
	q := c.render(claimSQL, []any{limit}, ":columns", quoteAll(columns), ":order", c.cfg.orderBy(table.Key))
	var rows []T
	err = c.run(ctx, func(ctx context.Context) (err error) {
		rows, err = collect(ctx, tx, q, pgx.RowToStructByName[T])
		return err
	})
	if err != nil {
		return nil, err
	}
	return rows, nil
}
