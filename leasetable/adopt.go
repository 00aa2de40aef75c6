package leasetable

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/fencing"
)

// AdoptResult is the answer to Adopt.
type AdoptResult struct {
	Renewal
	Age     time.Duration // since the grant
	Request string        // the ID of the request that was granted
	Permits Permits
	Current fencing.Token // of the newest grant of the name, if this one is gone; 0: none
}

// Adopt renews one grant and makes holder its holder. If it does not, it finds out why.
func (s *Store) Adopt(ctx context.Context, fence fencing.Fence, holder string, ttl time.Duration) (a AdoptResult, err error) {
	args := []any{fence.Name, int64(fence.Token), ttl.Microseconds(), holder}
	a.Sent, err = s.send(ctx, statement{s.sql.adopt, args, func(r pgx.Rows) error {
		var left, age int64
		err := r.Scan(&left, &age, &a.Request, &a.Permits.Capacity, &a.Permits.Weight)
		a.Remaining, a.Age = time.Duration(left)*time.Microsecond, time.Duration(age)*time.Microsecond
		a.Outcome = RenewDone
		return err
	}})
	if err != nil || a.Outcome == RenewDone {
		return a, err
	}
	names, tokens := split([]fencing.Fence{fence})
	_, err = s.checkGrants(ctx, s.send, names, tokens, func(_ fencing.Fence, live bool, _ Status) {
		if live {
			a.Outcome = RenewBlocked
		}
	})
	if err != nil || a.Outcome == RenewBlocked {
		return a, err
	}
	row, _, err := s.Get(ctx, fence.Name)
	a.Current = row.Token
	return a, err
}
