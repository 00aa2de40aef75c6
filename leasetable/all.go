package leasetable

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/internal/timing"
)

// AcquireAll makes an attempt to acquire all names of r. ctx is derived from the life of the Store.
func (s *Store) AcquireAll(ctx context.Context, r *Request) (g Grant, err error) {
	sent, err := s.sendWithin(ctx, statement{
		sql:  s.sql.acquireAll,
		args: []any{r.All, r.ID, r.Holder, r.Labels, r.TTL.Microseconds(), r.Ticket},
		row: func(row pgx.Rows) error {
			var left int64
			var name, holder *string
			err := row.Scan(&g.Outcome, &name, &g.Token, &holder, &left, &g.Ahead, &g.Invalid)
			if name != nil {
				g.Name = *name
			}
			if holder != nil {
				g.Holder = *holder
			}
			if g.Outcome == OtherKind {
				g.Capacity, left = int(left), 0
			}
			g.Remaining = time.Duration(left) * time.Microsecond
			return err
		},
	})
	if err != nil {
		return Grant{}, err // a row before the error promises nothing
	}
	if g.Outcome == Granted {
		s.highWater.observeGrant(r.All[0], g.Token)
	}
	g.Sent = sent
	return g, nil
}

// JoinAll is JoinQueue for a caller that waits for all the names with one ticket. It tries twice.
func (s *Store) JoinAll(ctx context.Context, names []string, client, holder string, waited time.Duration) (p Position, err error) {
	err = s.twice(ctx, func(ctx context.Context) error {
		_, err := s.sendWaking(ctx, statement{
			s.sql.joinAll,
			[]any{names, client, timing.TicketTTL.Microseconds(), timing.KeepTicket.Microseconds(), holder, waited.Microseconds()},
			func(r pgx.Rows) error {
				var left int64
				err := r.Scan(&p.Ticket, &p.Ahead, &p.Free, &left)
				p.Remaining = time.Duration(left) * time.Microsecond
				return err
			},
		})
		return err
	})
	return p, err
}
