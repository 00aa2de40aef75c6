package rowlock

import (
	"iter"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// ByKey has the results of a call by key: the rows that ForUpdate has locked, or the quantities
// that Reserve has left. Its zero value is empty. It is not changed after the call, so any number
// of goroutines may read it.
type ByKey[K comparable, V any] struct {
	keys   []K
	values map[K]V
}

// Get returns the value of key. It reports false if key was not passed to the call, or has no row.
func (b ByKey[K, V]) Get(key K) (V, bool) {
	v, ok := b.values[key]
	return v, ok
}

// All iterates over the keys and values. Rows are in the order of the table's key, and quantities
// in the order of the lines. So programs that go on to lock something for each row do so in one
// order, and not in that of a Go map.
func (b ByKey[K, V]) All() iter.Seq2[K, V] {
	return func(yield func(K, V) bool) {
		for _, k := range b.keys {
			if !yield(k, b.values[k]) {
				return
			}
		}
	}
}

// Len returns the number of values.
func (b ByKey[K, V]) Len() int { return len(b.keys) }

// add appends a value. The key is new.
func (b *ByKey[K, V]) add(key K, value V) {
	if b.values == nil {
		b.values = map[K]V{}
	}
	b.keys, b.values[key] = append(b.keys, key), value
}

// located is a row with the positions of its key in the arguments, counted from 1.
type located[T any] struct {
	positions []int32
	row       T
}

// locate returns a function that scans a row whose first column has the positions.
func locate[T any](scan pgx.RowToFunc[T]) pgx.RowToFunc[located[T]] {
	return func(row pgx.CollectableRow) (l located[T], err error) {
		l.row, err = scan(tail{row, &l.positions})
		return l, err
	}
}

// tail is a row without its first column, which Scan stores in first.
type tail struct {
	pgx.CollectableRow
	first any
}

func (t tail) FieldDescriptions() []pgconn.FieldDescription {
	return t.CollectableRow.FieldDescriptions()[1:]
}

func (t tail) Scan(dest ...any) error {
	return t.CollectableRow.Scan(append([]any{t.first}, dest...)...)
}
