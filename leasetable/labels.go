package leasetable

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/fencing"
)

// SetLabelsResult is the answer to SetLabels.
type SetLabelsResult struct {
	GrantCall
	TooLarge bool // all labels together
}

// SetLabels adds labels, as JSON, to those of a grant, unless there are more than limit bytes then. It
// notifies the clients that watch the lock. It tries twice.
func (s *Store) SetLabels(ctx context.Context, fence fencing.Fence, labels string, limit int) (l SetLabelsResult, err error) {
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
