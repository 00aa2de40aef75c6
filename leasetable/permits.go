package leasetable

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/fencing"
)

// Permits says how many of the permits of a name a grant has. The zero Permits are those of a lock
// with one holder.
type Permits struct {
	Capacity int // of the name; 0: it has no permits, but one holder
	Weight   int // of the grant: 1 to Capacity
}

// Any reports whether the name has permits.
func (p Permits) Any() bool { return p.Capacity > 0 }

// Shared reports whether others can hold the name at the same time.
func (p Permits) Shared() bool { return p.Weight < p.Capacity }

// AcquirePermits makes an attempt to acquire permits. ctx is derived from the life of the Store.
func (s *Store) AcquirePermits(ctx context.Context, r *Request) (g Grant, err error) {
	sent, err := s.sendWaking(ctx, statement{
		sql:  s.sql.acquirePermits,
		args: []any{r.Name, r.Permits.Capacity, r.Permits.Weight, r.ID, r.Holder, r.Labels, r.TTL.Microseconds(), r.Ticket},
		row: func(row pgx.Rows) error {
			var left int64
			var holder *string
			err := row.Scan(&g.Outcome, &g.Token, &holder, &left, &g.Ahead, &g.Invalid)
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
	switch {
	case err != nil:
		return Grant{}, err // a row before the error promises nothing
	case g.Outcome == Granted:
		s.highWater.observeGrant(r.Name, g.Token)
	case g.Outcome == again:
		g.Outcome = ""
	}
	g.Sent = sent
	return g, nil
}

// ReleasePermits is Release for a name with permits.
func (s *Store) ReleasePermits(ctx context.Context, fence fencing.Fence) (released, notified bool, err error) {
	return s.releaseOne(ctx, s.sql.releasePermits, fence.Name, int64(fence.Token))
}

// Resize sets the number of permits of a name, and creates the name if need be. It returns the
// number of permits that the name had before; 0: it was created; -1: it has one holder, -2: it is a
// readers-writer lock, and nothing was changed.
func (s *Store) Resize(ctx context.Context, name string, capacity int) (before int, err error) {
	ctx, cancel := s.withLife(ctx)
	defer cancel()
	_, err = s.sendWaking(ctx, statement{sql: s.sql.resizePermits, args: []any{name, capacity}, row: func(r pgx.Rows) error {
		return r.Scan(&before)
	}})
	return before, err
}

// Downgrade turns the grant of a writer into that of a reader, with the same token. It reports false
// if the grant is not current. Repeating it is safe.
func (s *Store) Downgrade(ctx context.Context, fence fencing.Fence) (done bool, err error) {
	ctx, cancel := s.withLife(ctx)
	defer cancel()
	done, _, err = s.releaseOne(ctx, s.sql.downgradePermits, fence.Name, int64(fence.Token))
	return done, err
}

// Upgrade turns the grant of a reader into a new one of the writer r, if there is no other reader.
// The Outcome is RequestEnded if the reader's grant is not current. Repeating it is safe.
func (s *Store) Upgrade(ctx context.Context, reader fencing.Token, r *Request) (g Grant, err error) {
	sent, err := s.send(ctx, statement{
		sql:  s.sql.upgradePermits,
		args: []any{r.Name, int64(reader), r.ID, r.Holder, r.Labels, r.TTL.Microseconds()},
		row: func(row pgx.Rows) error {
			var left int64
			var holder *string
			err := row.Scan(&g.Outcome, &g.Token, &holder, &left)
			if holder != nil {
				g.Holder = *holder
			}
			g.Remaining = time.Duration(left) * time.Microsecond
			return err
		},
	})
	if err != nil {
		return Grant{}, err // a row before the error promises nothing
	}
	if g.Outcome == Granted {
		s.highWater.observeGrant(r.Name, g.Token)
	}
	g.Sent = sent
	return g, nil
}
