package leasetable

import (
	"context"
	"crypto/sha256"
	"encoding/hex"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/timing"
)

// HolderChannel returns the channel of requests to the holders of a schema's locks. All clients of
// the schema share it.
func HolderChannel(schema string) string {
	sum := sha256.Sum256([]byte(schema))
	return "pglock_holders_" + hex.EncodeToString(sum[:8])
}

// GrantCall is the answer to a request that concerns the grant of another client.
type GrantCall struct {
	Found   bool          // there is a row of that name
	Current fencing.Token // of its last grant
	Done    bool          // the grant is revoked, its holder is asked, or the labels are set
	Large   bool          // of SetLabels: all labels together are too large
}

// RevokeGrant revokes a grant. A grant that was revoked before is Done.
func (s *Store) RevokeGrant(ctx context.Context, fence fencing.Fence, reason string) (i GrantCall, err error) {
	err = s.intervene(ctx, s.sql["revoke_grant"], fence, []any{reason, HolderChannel(s.schema)}, &i, nil)
	return i, err
}

// RequestRelease asks the holder of a grant to release it.
func (s *Store) RequestRelease(ctx context.Context, fence fencing.Fence, reason string) (i GrantCall, err error) {
	err = s.intervene(ctx, s.sql["request_release"], fence, []any{reason, HolderChannel(s.schema)}, &i)
	return i, err
}

// intervene sends a statement about a grant of another client, with further arguments, and reads the
// answer, whose further columns are into.
func (s *Store) intervene(ctx context.Context, sql string, fence fencing.Fence, args []any, i *GrantCall, into ...any) error {
	args = append([]any{fence.Name, int64(fence.Token)}, args...)
	return s.wakeTwice(ctx, statement{sql, args, func(r pgx.Rows) error {
		i.Found = true
		return r.Scan(append([]any{&i.Current, &i.Done}, into...)...)
	}})
}

// SetLabels adds labels, as JSON, to those of a grant, unless there are more than limit bytes then. It
// notifies the clients that watch the lock.
func (s *Store) SetLabels(ctx context.Context, fence fencing.Fence, labels string, limit int) (i GrantCall, err error) {
	err = s.intervene(ctx, s.sql["set_labels"], fence, []any{labels, limit}, &i, &i.Large)
	return i, err
}

// AwaitGuards waits until no guarded transaction uses a revoked grant, for a second at most, and then
// wakes the head of the queue. The error is RowLocked if a guarded transaction still uses it.
func (s *Store) AwaitGuards(ctx context.Context, fence fencing.Fence) error {
	return s.wake(ctx, statement{sql: s.sql["await_guards"], args: []any{fence.Name, int64(fence.Token)}})
}

// Watch makes releases of the lock notify channel for a while.
func (s *Store) Watch(ctx context.Context, name, channel string) error {
	return s.sendTwice(ctx, statement{sql: s.sql["watch"], args: []any{name, channel, timing.TicketTTL.Microseconds()}})
}
