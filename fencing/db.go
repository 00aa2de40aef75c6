package fencing

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// DB is a connection, a pool or a transaction of pgx, or of an adapter for another driver. The
// package calls only QueryRow and Exec, with strings, integers and booleans as arguments.
type DB interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Tx is a transaction: a pgx.Tx, or what package sqltx makes of a *sql.Tx. The package does not
// call Commit and Rollback. They keep callers from passing a pool or a connection, where a check
// would no longer hold when it returns.
type Tx interface {
	DB
	Commit(ctx context.Context) error
	Rollback(ctx context.Context) error
}
