package leasetable

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/schema"
)

// GrantedTo reports whether the lock is held by the grant of that request.
func (t *Table) GrantedTo(ctx context.Context, name, request string) (granted bool, err error) {
	err = t.run(ctx, Statement{SQL: t.sql["granted_to"], Args: []any{name, request}, Tries: 2, Row: func(r pgx.Rows) error {
		return r.Scan(&granted)
	}})
	return granted, err
}

// pruneStep is the number of pages that one statement reads, with 1,000 to 2,000 rows of short names.
const pruneStep = 64

// Pruned is the result of one step of pruning.
type Pruned struct {
	Deleted int64
	Next    int64         // the page from which the next step begins
	Highest fencing.Fence // the highest token that was seen
	Done    bool          // there are no further pages
}

// Prune reads some pages of the table from that one on, 0 at first, and deletes the idle rows in them.
func (t *Table) Prune(ctx context.Context, idle time.Duration, page int64) (p Pruned, err error) {
	var pages int64
	p.Next = page + pruneStep
	args := []any{idle.Microseconds(), page, p.Next, schema.Quote(t.schema) + ".distributed_locks"}
	err = t.run(ctx, Statement{SQL: t.sql["prune"], Args: args, Tries: 2, Row: func(r pgx.Rows) error {
		return r.Scan(&pages, &p.Deleted, &p.Highest.Name, &p.Highest.Token)
	}})
	p.Done = p.Next >= pages
	return p, err
}

// LiftTokens puts the token sequence above the token in the row of a name.
func (t *Table) LiftTokens(ctx context.Context, name string) error {
	return t.run(ctx, Statement{SQL: t.sql["lift"], Args: []any{name}, Tries: 2})
}
