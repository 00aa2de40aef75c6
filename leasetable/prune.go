package leasetable

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	// pruneBatch is how many rows one statement deletes: it holds back first grants
	// of new names for as long as it takes.
	pruneBatch = 1000

	// pruneTries is how often a batch tries to get between two first grants.
	pruneTries = 20
)

// Prune deletes the rows of names that nobody has held for that long, counted from
// its release, or from the end of a grant that was not released. Tokens stay
// in order: the next grant of such a name gets a larger one. It returns how many
// rows it deleted, also with an error. The row with the highest token stays.
//
// Rows in use are skipped. Pruning and first grants of new names exclude each other
// for the time of a statement. Where first grants follow each other so closely that
// Prune can't get between them, it gives up with ErrNotAcquired: try later. ctx
// bounds it, and so does Close.
func (c *Client) Prune(ctx context.Context, idle time.Duration) (int64, error) {
	if idle < 0 {
		return 0, invalidOption("prune after %v, it can't be negative", idle)
	}
	if err := c.enter(); err != nil {
		return 0, err
	}
	defer c.leave()
	var total, highest int64
	if err := c.askTwice(ctx, statement{c.sql.highest, nil, func(r pgx.Rows) error { return r.Scan(&highest) }}); err != nil {
		return 0, explain(c.cfg.schema, "prune", err)
	}
	for {
		select {
		case <-c.closing:
			return total, ErrClosed
		default:
		}
		found, n, err := c.pruneOnce(ctx, idle, highest)
		total += n
		if err != nil {
			return total, explain(c.cfg.schema, fmt.Sprintf("prune rows idle for %v", idle), err)
		}
		if found < pruneBatch || n == 0 {
			return total, nil
		}
	}
}

// pruneOnce finds a batch of idle names and deletes those that still are.
func (c *Client) pruneOnce(ctx context.Context, idle time.Duration, highest int64) (found int, deleted int64, err error) {
	var names []string
	err = c.askTwice(ctx, statement{c.sql.idle, []any{idle.Microseconds(), pruneBatch, highest}, func(r pgx.Rows) error {
		var name string
		err := r.Scan(&name)
		names = append(names, name)
		return err
	}})
	if err != nil || len(names) == 0 {
		return 0, 0, err
	}
	var pause backoff
	for range pruneTries {
		var open bool
		err = c.askTwice(ctx, statement{c.sql.prune, []any{idle.Microseconds(), names}, func(r pgx.Rows) error {
			return r.Scan(&open, &deleted)
		}})
		if err != nil || open {
			return len(names), deleted, err
		}
		select {
		case <-time.After(pause.next(0)):
		case <-ctx.Done():
			return 0, 0, context.Cause(ctx)
		case <-c.closing:
			return 0, 0, ErrClosed
		}
	}
	return 0, 0, fmt.Errorf("%w: first grants of new names leave no gap for pruning", ErrNotAcquired)
}
