package leasetable

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/pgtx"
)

// Permits says how many permits of a name a grant has, by default none.
type Permits struct {
	Capacity int // of the name; 0: it has no permits, but one holder
	Weight   int // of the grant: 1 to Capacity
}

// ReadersWriter is the capacity of a readers–writer lock.
const ReadersWriter = 1 << 30

// Any reports whether the name has permits.
func (p Permits) Any() bool { return p.Capacity > 0 }

// Shared reports whether others can hold the name at the same time.
func (p Permits) Shared() bool { return p.Weight < p.Capacity }

// ReleasePermits releases a grant of names with permits, sorted. For each name where it was
// current, it returns whether a waiter was notified. shared: the grant is likely one of some
// permits of a single name.
func (t *Table) ReleasePermits(ctx context.Context, names []string, token fencing.Token, shared bool) (notified map[string]bool, err error) {
	notified = make(map[string]bool, len(names))
	if shared {
		err = t.run(ctx, Statement{SQL: t.sql["release_permit"], Args: []any{names[0], int64(token), true}, Wakes: true, Row: func(r pgx.Rows) error {
			var woken bool
			err := r.Scan(&woken)
			notified[names[0]] = woken
			return err
		}})
		switch {
		case err == nil && len(notified) > 0:
			return notified, nil
		case err != nil && pgtx.SQLState(err) != pgtx.LockNotAvailable:
			return nil, err
		}
		clear(notified) // a row before the error promises nothing
	}
	err = t.run(ctx, Statement{SQL: t.sql["release_permits"], Args: []any{names, int64(token), true}, Wakes: true, Row: func(r pgx.Rows) error {
		var name string
		var woken bool
		err := r.Scan(&name, &woken)
		notified[name] = woken
		return err
	}})
	if err != nil {
		return nil, err
	}
	return notified, nil
}

// Resize sets the number of permits of a name, and returns the number before; 0: the name was
// created; -1: it has one holder, -2: it is a readers–writer lock, and nothing was changed.
func (t *Table) Resize(ctx context.Context, name string, capacity int) (before int, err error) {
	err = t.run(ctx, Statement{SQL: t.sql["resize_permits"], Args: []any{name, capacity, true}, Wakes: true, Row: func(r pgx.Rows) error {
		return r.Scan(&before)
	}})
	return before, err
}

// KeepPermits leaves n permits to a grant, and reports whether it was current. A writer that keeps
// one is a reader. Repeating it is safe.
func (t *Table) KeepPermits(ctx context.Context, fence fencing.Fence, n int) (done bool, err error) {
	args := []any{fence.Name, int64(fence.Token), n, true}
	err = t.run(ctx, Statement{SQL: t.sql["keep_permits"], Args: args, Wakes: true, Row: func(pgx.Rows) error { done = true; return nil }})
	return done && err == nil, err
}

// Upgrade makes a reader's grant that of the writer r, if there is no other reader. RequestEnded:
// the grant is not current. Repeating it is safe.
func (t *Table) Upgrade(ctx context.Context, reader fencing.Token, r *Request) (Grant, error) {
	args := []any{r.Name, int64(reader), r.ID, r.Holder, r.Labels, r.TTL.Microseconds()}
	return t.grantSlots(ctx, r, Statement{SQL: t.sql["upgrade_permits"], Args: args})
}
