package advisory

import (
	"context"
	"reflect"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Tx is what the functions of this package need of a transaction. pgx.Tx has it, and
// package sqltx gives it to a *sql.Tx. (Commit and Rollback are not called: they keep
// a pool from being taken for a transaction, in which a lock would be gone at once.)
//
// If the transaction also has the methods SendBatch and Conn of pgx.Tx, a lock takes one
// round trip instead of three, and a cancelled context leaves it usable.
type Tx interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	Commit(ctx context.Context) error
	Rollback(ctx context.Context) error
}

// missing reports whether tx is nil, or a pointer that is.
func missing(tx Tx) bool {
	v := reflect.ValueOf(tx)
	return tx == nil || v.Kind() == reflect.Pointer && v.IsNil()
}

// batcher is a transaction or connection that sends several statements in one round trip.
type batcher interface {
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}

// connOf returns the connection of tx, nil if it doesn't tell.
func connOf(tx any) *pgx.Conn {
	if conn, ok := tx.(*pgx.Conn); ok {
		return conn
	}
	if t, ok := tx.(interface{ Conn() *pgx.Conn }); ok {
		return t.Conn()
	}
	return nil
}

// query is a statement with its arguments.
type query struct {
	sql  string
	args []any
}

// sendTogether runs the queries in order, in one round trip where tx can, and stops at the
// first that fails. It returns how many succeeded.
func sendTogether(ctx context.Context, tx Tx, queries ...query) (done int, err error) {
	b, ok := tx.(batcher)
	if !ok {
		for _, q := range queries {
			if _, err := tx.Exec(ctx, q.sql, q.args...); err != nil {
				return done, err
			}
			done++
		}
		return done, nil
	}
	batch := &pgx.Batch{}
	for _, q := range queries {
		batch.Queue(q.sql, q.args...).Exec(func(pgconn.CommandTag) error { done++; return nil })
	}
	return done, b.SendBatch(ctx, batch).Close()
}
