package leasetable

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/fencing"
)

// NestedWait is a call that waits for the locks of a request while its context carries leases.
type NestedWait struct {
	*Request                 // with its ticket; its ID is the same for all statements about this wait
	Holds    []fencing.Token // of the leases
	Holders  []string        // of each: its holder
}

// NestedWait tells the server of a wait. If the wait has closed a cycle, it returns the cycle in words, and the
// server does not know the wait any more. It forgets a wait that is not told for timing.NestedWaitTTL.
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
	_, err = t.sender.Send(ctx, Statement{SQL: t.sql["nested_wait"], Args: args, Row: func(r pgx.Rows) error { return r.Scan(&cycle) }})
	return cycle, err
}

// EndNestedWait tells the server that the wait of that ID has ended.
func (t *Table) EndNestedWait(ctx context.Context, id string) error {
	_, err := t.sender.Send(ctx, Statement{SQL: t.sql["end_nested_wait"], Args: []any{id}, Tries: 2})
	return err
}
