package leasetable

import (
	"context"
	"fmt"
	"time"
)

// pruneBatch is how many rows one statement deletes: it holds back first grants
// of new names for as long as it takes.
const pruneBatch = 1000

// Prune deletes the rows of names that nobody has held for that long, counted from
// the last grant if it was released and from its end if it expired. Tokens stay
// in order: the next grant of such a name gets a larger one. It returns how many
// rows it deleted, also with an error.
//
// It does not wait: rows in use are skipped, and when a first grant of a new name
// is under way it stops early, without an error. ctx bounds it.
func (c *Client) Prune(ctx context.Context, idle time.Duration) (int64, error) {
	if idle < 0 {
		return 0, invalidOption("prune after %v, it can't be negative", idle)
	}
	if err := c.enter(); err != nil {
		return 0, err
	}
	defer c.leave()
	var total int64
	for {
		open, n, err := c.pruneOnce(ctx, idle)
		total += n
		if err != nil || !open || n < pruneBatch {
			return total, err
		}
	}
}

func (c *Client) pruneOnce(ctx context.Context, idle time.Duration) (open bool, n int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, statementBound)
	defer cancel()
	err = c.conns.do(ctx, func(ctx context.Context, q querier, _ time.Time) error {
		return q.QueryRow(ctx, c.sql.prune, idle.Microseconds(), pruneBatch).Scan(&open, &n)
	})
	if err != nil {
		return false, 0, explain(c.cfg.schema, fmt.Sprintf("prune rows idle for %v", idle), err)
	}
	return open, n, nil
}
