package leasetable

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// sendHandoff grants the lock that f gives up to the first in line here, in one
// statement. It reports whether f is done: otherwise the lock must be released.
func (c *Client) sendHandoff(ctx context.Context, f *freeing) bool {
	t, l := f.to, f.lease
	f.to = nil
	var g grant
	var err error
	g.sent, err = c.conns.sendOwn(ctx, statement{
		sql: c.sql.handoff,
		args: []any{l.fence.Name, int64(l.fence.Token), t.request, t.cfg.holder, t.cfg.labels,
			t.cfg.ttl.Microseconds(), c.channel},
		row: func(r pgx.Rows) error {
			var left int64
			err := r.Scan(&g.token, &left)
			g.outcome, g.remaining = granted, time.Duration(left)*time.Microsecond
			return err
		},
	})
	f.uncertain = f.uncertain || applied(err)
	switch {
	case err == nil && g.outcome == granted, applied(err):
		if !c.waiting.handOver(t, answer{g, err}) {
			t.withdraw(t.request) // it has left; this wakes the next
		}
		f.handed = err == nil
		return f.handed
	default:
		c.waiting.giveUp(t)
		return false
	}
}
