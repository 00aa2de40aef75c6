package leasetable

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/internal/timing"
)

// GrantCall is the answer to a call that concerns another client's grant.
type GrantCall struct {
	Found   bool          // there is a row of that name
	Current fencing.Token // of its last grant
	Done    bool          // the grant is revoked, its holder is asked, or the labels are set
	Large   bool          // of SetLabels: all labels together are too large
}

// RevokeGrant revokes a grant. A grant that was revoked before is Done.
func (t *Table) RevokeGrant(ctx context.Context, fence fencing.Fence, reason string) (i GrantCall, err error) {
	err = t.intervene(ctx, t.sql["revoke_grant"], fence, []any{reason, schema.HolderChannel(t.schema)}, &i, nil)
	return i, err
}

// RequestRelease asks the holder of a grant to release it.
func (t *Table) RequestRelease(ctx context.Context, fence fencing.Fence, reason string) (i GrantCall, err error) {
	err = t.intervene(ctx, t.sql["request_release"], fence, []any{reason, schema.HolderChannel(t.schema)}, &i)
	return i, err
}

// intervene sends a statement about a grant of another client, with further arguments, and reads
// the answer, whose further columns are into.
func (t *Table) intervene(ctx context.Context, sql string, fence fencing.Fence, args []any, i *GrantCall, into ...any) error {
	args = append(append([]any{fence.Name, int64(fence.Token)}, args...), true)
	return t.run(ctx, Statement{SQL: sql, Args: args, Tries: 2, Wakes: true, Row: func(r pgx.Rows) error {
		i.Found = true
		return r.Scan(append([]any{&i.Current, &i.Done}, into...)...)
	}})
}

// SetLabels adds labels, as JSON, to those of a grant, unless they would take more than limit
// bytes, and notifies those who watch the lock.
func (t *Table) SetLabels(ctx context.Context, fence fencing.Fence, labels string, limit int) (i GrantCall, err error) {
	err = t.intervene(ctx, t.sql["set_labels"], fence, []any{labels, limit}, &i, &i.Large)
	return i, err
}

// AwaitGuards waits until no guard uses a revoked grant, and then wakes the head of the queue.
// After a second it fails with lock_not_available.
func (t *Table) AwaitGuards(ctx context.Context, fence fencing.Fence) error {
	return t.run(ctx, Statement{SQL: t.sql["await_guards"], Args: []any{fence.Name, int64(fence.Token), true}, Wakes: true})
}

// Watch makes releases of the lock notify channel for a while.
func (t *Table) Watch(ctx context.Context, name, channel string) error {
	return t.run(ctx, Statement{SQL: t.sql["watch"], Args: []any{name, channel, timing.TicketTTL.Microseconds()}, Tries: 2})
}
