package fencing

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// DB is what Protect, Unprotect and a TableChecker need of a connection, a pool or a
// transaction of pgx, or of an adapter for another driver. Only QueryRow and Exec are used,
// with strings, integers and booleans.
type DB interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Tx is a transaction. A pgx.Tx is one, and package sqltx makes one of a *sql.Tx. (Commit
// and Rollback are not called: they keep a pool or a connection from being taken for a
// transaction, where a check would have ended when it returns.)
type Tx interface {
	DB
	Commit(ctx context.Context) error
	Rollback(ctx context.Context) error
}
