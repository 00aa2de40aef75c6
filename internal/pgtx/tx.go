package pgtx

import (
	"context"
	"errors"
	"reflect"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock/pglock-go/internal/errs"
)

// Execer is what this package needs of a transaction. A pgx.Tx is one, and so is a *sqltx.Tx.
type Execer interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// batcher is a transaction or connection that sends several statements in one round trip.
type batcher interface {
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}

// Query is a statement with its arguments.
type Query struct {
	SQL  string
	Args []any
}

// IsNil reports whether v is nil, or a nil pointer.
func IsNil(v any) bool {
	r := reflect.ValueOf(v)
	return v == nil || r.Kind() == reflect.Pointer && r.IsNil()
}

// Conn returns the connection of tx, which may be a transaction, a pool's connection or a
// *pgx.Conn. It returns nil if tx does not reveal its connection.
func Conn(tx any) *pgx.Conn {
	switch tx := tx.(type) {
	case *pgx.Conn:
		return tx
	case interface{ Conn() *pgx.Conn }:
		return tx.Conn()
	}
	return nil
}

// ExecAll runs the queries in order and stops at the first that fails. It takes one round trip
// if tx has the method SendBatch, and otherwise one for each query.
func ExecAll(ctx context.Context, tx Execer, queries ...Query) error {
	b, ok := tx.(batcher)
	if !ok || len(queries) == 1 { // a batch would prepare its statement first
		for _, q := range queries {
			if _, err := tx.Exec(ctx, q.SQL, q.Args...); err != nil {
				return err
			}
		}
		return nil
	}
	batch := &pgx.Batch{}
	for _, q := range queries {
		batch.Queue(q.SQL, q.Args...)
	}
	return b.SendBatch(ctx, batch).Close()
}

// Rollback rolls tx back, also when ctx is done. It returns nil if tx has ended already. If the
// rollback fails, pgx closes the connection.
func Rollback(ctx context.Context, tx pgx.Tx) error {
	err := CleanUp(ctx, tx.Rollback)
	if err == nil || errors.Is(err, pgx.ErrTxClosed) {
		return nil
	}
	return errs.Errorf("rollback: the connection was closed: %w", err)
}
