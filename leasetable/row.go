package leasetable

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/fencing"
)

// GrantedTo reports whether the lock is held by the grant of that request.
func (t *Table) GrantedTo(ctx context.Context, name, request string) (granted bool, err error) {
	err = t.run(ctx, Statement{SQL: t.sql["granted_to"], Args: []any{name, request}, Tries: 2, Row: func(r pgx.Rows) error {
		return r.Scan(&granted)
	}})
	return granted, err
}

// pruneStep is the number of rows that one statement examines: see sql/prune.sql.
const pruneStep = 1000

// Pruned is the result of one step of pruning.
type Pruned struct {
	Deleted int64
	Last    string        // name of the last row that was examined
	Highest fencing.Fence // the highest token that was seen
	Done    bool          // there are no further rows
}

// Prune examines some rows with names beyond after, and deletes the idle ones.
func (t *Table) Prune(ctx context.Context, idle time.Duration, after string) (p Pruned, err error) {
	var seen int
	err = t.run(ctx, Statement{SQL: t.sql["prune"], Args: []any{idle.Microseconds(), after}, Tries: 2, Row: func(r pgx.Rows) error {
		return r.Scan(&seen, &p.Last, &p.Deleted, &p.Highest.Name, &p.Highest.Token)
	}})
	p.Done = seen < pruneStep
	return p, err
}

// LiftTokens puts the token sequence above the token in the row of a name.
func (t *Table) LiftTokens(ctx context.Context, name string) error {
	return t.run(ctx, Statement{SQL: t.sql["lift"], Args: []any{name}, Tries: 2})
}
