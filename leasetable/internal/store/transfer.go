package store

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/fencing"
)

// Transfer is a grant that a holder has transferred to a waiter.
type Transfer struct {
	Done     bool
	Token    fencing.Token
	Version  int64 // of the row: it changes when the waiter confirms the grant
	Notified bool  // the waiter's client
}

// Transfer grants the lock of fence to the first waiter with that holder's name, or to the first one
// of all, instead of releasing it. The waiter must confirm the grant within that time. ctx is derived
// from the life of the Store.
func (s *Store) Transfer(ctx context.Context, fence fencing.Fence, holder string, confirm time.Duration) (t Transfer, err error) {
	_, err = s.sendWaking(ctx, statement{
		sql:  s.sql.transfer,
		args: []any{fence.Name, int64(fence.Token), holder, confirm.Microseconds()},
		row: func(r pgx.Rows) error {
			t.Done = true
			return r.Scan(&t.Token, &t.Version, &t.Notified)
		},
	})
	if err != nil {
		return Transfer{}, err // a row before the error promises nothing
	}
	return t, nil
}

// Labeling is the answer to SetLabels.
type Labeling struct {
	Intervention
	TooLarge bool // all labels together
}

// SetLabels adds labels, as JSON, to those of a grant, unless there are more than limit bytes then. It
// notifies the clients that watch the lock. It tries twice.
func (s *Store) SetLabels(ctx context.Context, fence fencing.Fence, labels string, limit int) (l Labeling, err error) {
	err = s.wakeTwice(ctx, statement{
		sql:  s.sql.setLabels,
		args: []any{fence.Name, int64(fence.Token), labels, limit},
		row: func(r pgx.Rows) error {
			l.Found = true
			return r.Scan(&l.Current, &l.Done, &l.TooLarge)
		},
	})
	return l, err
}

// NotifyWatchers notifies the clients that watch name. ctx is derived from the life of the Store.
func (s *Store) NotifyWatchers(ctx context.Context, name string) error {
	_, err := s.sendWaking(ctx, statement{sql: s.sql.notifyWatchers, args: []any{name}})
	return err
}
