package rowlock

import (
	"context"
	"reflect"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/pglock/sqltx"
)

// Tx is the caller's transaction: a pgx.Tx, or a *sql.Tx through package sqltx.
type Tx = advisory.Tx

// connOf returns the connection of tx, nil if it doesn't tell.
func connOf(tx Tx) *pgx.Conn {
	if t, ok := tx.(interface{ Conn() *pgx.Conn }); ok {
		return t.Conn()
	}
	return nil
}

// cancels reports whether a statement of tx can be cancelled without the loss of tx.
func cancels(tx Tx) bool {
	_, own := tx.(*sqltx.Tx)
	return own || connOf(tx) != nil
}

func missing(tx Tx) bool {
	v := reflect.ValueOf(tx)
	return tx == nil || v.Kind() == reflect.Pointer && v.IsNil()
}

// query is a statement with its arguments.
type query struct {
	sql  string
	args []any
}

// sendTogether runs the queries in order, in one round trip where tx can, and stops at the
// first that fails.
func sendTogether(ctx context.Context, tx Tx, queries ...query) error {
	b, ok := tx.(interface {
		SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
	})
	if !ok {
		for _, q := range queries {
			if _, err := tx.Exec(ctx, q.sql, q.args...); err != nil {
				return err
			}
		}
		return nil
	}
	batch := &pgx.Batch{}
	for _, q := range queries {
		batch.Queue(q.sql, q.args...)
	}
	return b.SendBatch(ctx, batch).Close()
}
