package rowlock

import (
	"context"
	"time"
)

// Claim locks and returns up to limit rows of a queue that nobody else has locked, in the order
// of OrderBy, and waits for none of them. Where and Due say which rows are ready.
//
// The rows are the caller's until tx ends. Delete them in tx, or change what Where looks at, and
// commit: the work is done. If tx is rolled back, or the process or its connection dies, the
// rows are free again as they were, at once or when the server notices: each is worked on at least
// once, and its changes in the database are made exactly once.
//
// Fewer rows than limit do not mean that the queue is empty: others may hold some, or have
// changed them in this moment. None is not an error.
//
// For T, failures and ctx see ForUpdate; the key need not be in T. A lock on the whole table
// is waited for.
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
		return nil, invalidOption("a limit of %d rows, it must be positive", limit)
	}
	s, err := shapeOf[T](c.cfg.columns, "")
	if err != nil {
		return nil, err
	}
	c.names(s.names)
	q := c.render(claimSQL, []any{limit}, ":columns", quoteAll("t.", s.names), ":order", c.cfg.orderBy(table.Key))
	var rows []T
	err = c.run(ctx, func(ctx context.Context) (err error) {
		rows, err = s.collect(ctx, tx, q)
		return err
	})
	if err != nil {
		return nil, err
	}
	return rows, nil
}
