package leasetable

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/fencing"
)

// NestedWait is a call that waits while its context carries leases.
type NestedWait struct {
	*Request                 // with its ticket; its ID is the same for all statements about this wait
	Holds    []fencing.Token // of the leases
	Holders  []string        // of each: its holder
}

// NestedWait tells the server of a wait, which it forgets after timing.NestedWaitTTL, or at once
// if that closes a cycle, returned in words.
func (t *Table) NestedWait(ctx context.Context, w *NestedWait) (cycle string, err error) {
	names, _, weights := w.slots()
	holds := make([]int64, len(w.Holds)) // not null, and of a type that each query mode of pgx can encode
	for i, token := range w.Holds {
		holds[i] = int64(token)
	}
	args := []any{names, weights, holds, w.Holder, w.ID, nil, append([]string{}, w.Holders...)}
	if w.Ticket != NoTicket {
		args[5] = w.Ticket
	}
	err = t.run(ctx, Statement{SQL: t.sql["nested_wait"], Args: args, Row: func(r pgx.Rows) error { return r.Scan(&cycle) }})
	return cycle, err
}

// EndNestedWait makes the server forget the wait of that ID.
func (t *Table) EndNestedWait(ctx context.Context, id string) error {
	return t.run(ctx, Statement{SQL: t.sql["end_nested_wait"], Args: []any{id}, Tries: 2})
}
