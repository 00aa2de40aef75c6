package leasetable

import (
	"context"
	"time"
)

// retry repeats op, which must be safe to repeat, until it succeeds, fails for
// good, or ctx ends. Each attempt has a bound of its own.
func (c *Client) retry(ctx context.Context, op func(ctx context.Context) error) error {
	var pause backoff
	for {
		attempt, cancel := context.WithTimeout(ctx, statementBound/2)
		err := op(attempt)
		cancel()
		if err == nil || !transient(err) || ctx.Err() != nil {
			return err
		}
		select {
		case <-time.After(pause.next(0)):
		case <-ctx.Done():
			return err
		}
	}
}

// askTwice runs a statement that may be repeated, twice at most: the first may meet a
// connection that died long ago.
func (c *Client) askTwice(ctx context.Context, s statement) error {
	ctx, cancel := context.WithTimeout(ctx, statementBound)
	defer cancel()
	for failed := 0; ; failed++ {
		_, err := c.conns.send(ctx, s)
		if failed > 0 || !transient(err) || ctx.Err() != nil {
			return err
		}
	}
}
