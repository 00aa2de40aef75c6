package leasetable

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/fencing"
)

// Release releases a grant, expired or not, so that its lock is free minHold after the grant, and
// reports whether it was current and woke a waiter.
func (t *Table) Release(ctx context.Context, fence fencing.Fence, minHold time.Duration) (released, notified bool, err error) {
	args := []any{fence.Name, int64(fence.Token), minHold.Microseconds(), true}
	err = t.run(ctx, Statement{SQL: t.sql["release"], Args: args, Wakes: true, Row: func(r pgx.Rows) error {
		released = true
		return r.Scan(&notified)
	}})
	return released && err == nil, notified, err
}

// ReleaseBatch is Release for grants that are sorted by name, each with its own minHold. For each
// released grant it returns whether a waiter was notified. Release finds out about the others.
func (t *Table) ReleaseBatch(ctx context.Context, batch []fencing.Fence, minHold []time.Duration) (notified map[fencing.Fence]bool, err error) {
	names, tokens := split(batch)
	holds := make([]int64, len(batch))
	for i, d := range minHold {
		holds[i] = d.Microseconds()
	}
	notified = make(map[fencing.Fence]bool, len(batch))
	var woken bool
	fence := fencing.Fence{Schema: t.schema}
	into := []any{&fence.Name, &fence.Token, &woken} // once: a batch has many rows
	err = t.run(ctx, Statement{SQL: t.sql["release_batch"], Args: []any{names, tokens, holds, true}, Wakes: true, Row: func(r pgx.Rows) error {
		err := r.Scan(into...)
		notified[fence] = woken
		return err
	}})
	if err != nil {
		return nil, err
	}
	return notified, nil
}

// Revoke releases the grant of the request r, and reports whether it had one.
func (t *Table) Revoke(ctx context.Context, r *Request) (revoked bool, err error) {
	err = t.run(ctx, Statement{SQL: t.sql["revoke"], Args: []any{r.Names(), r.ID, true}, Wakes: true, Row: func(pgx.Rows) error {
		revoked = true
		return nil
	}})
	return revoked && err == nil, err
}

// split returns the names and the tokens of grants.
func split(grants []fencing.Fence) (names []string, tokens []int64) {
	names, tokens = make([]string, len(grants)), make([]int64, len(grants))
	for i, g := range grants {
		names[i], tokens[i] = g.Name, int64(g.Token)
	}
	return names, tokens
}
