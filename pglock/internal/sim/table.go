package sim

import (
	"context"
	"maps"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/pglock/internal/memory"
)

// Table is a table of the server in memory, with a row for each key. A row that is missing is the
// zero V.
type Table[V any] struct {
	world *World
	rows  map[string]V
}

// NewTable returns an empty table of a world.
func NewTable[V any](w *World) *Table[V] {
	t := &Table[V]{w, map[string]V{}}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.tables = append(w.tables, t)
	return t
}

// Read returns the committed row of a key, for a process that asks the server.
func (t *Table[V]) Read(ctx context.Context, n *Node, key string) (row V, err error) {
	answer, err := n.Carry(ctx, n.alive, memory.Message{Op: "read", About: key}, func(time.Time) (any, error) { return t.rows[key], nil })
	row, _ = answer.(V)
	return row, err
}

// Get returns the committed row of a key. It needs no message, and does not block.
func (t *Table[V]) Get(key string) V {
	t.world.mu.Lock()
	defer t.world.mu.Unlock()
	return t.rows[key]
}

// Update makes the commit of a transaction change a row as UPDATE does at READ COMMITTED: change is
// called with the row that is committed then.
func (t *Table[V]) Update(transaction pgx.Tx, key string, change func(row V) V) {
	if !memory.OnCommit(transaction, func() { t.rows[key] = change(t.rows[key]) }) {
		t.world.Failf("the transaction is of another world, or of a database: %T", transaction)
	}
}

// All returns a copy of all rows. It may be called by a Check.
func (t *Table[V]) All() map[string]V { return maps.Clone(t.rows) }

func (t *Table[V]) copy() (restore func()) {
	rows := maps.Clone(t.rows)
	return func() { t.rows = rows }
}
