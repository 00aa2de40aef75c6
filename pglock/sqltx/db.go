package sqltx

import (
	"context"
	"database/sql"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/pgtx"
)

// DB is a *sql.DB with the statements of a pgx pool, for functions such as fencing.Protect,
// fencing.Advance and once.Get. It is safe for concurrent use. Each statement runs by itself, as
// pgx runs it, on a connection of the *sql.DB. On another driver than pgx's it returns ErrDriver.
type DB struct{ db *sql.DB }

// WrapDB returns db with pgx's methods. It sends nothing, and there is nothing to close.
func WrapDB(db *sql.DB) DB { return DB{db} }

// Exec runs a statement. ctx bounds the wait for a connection and the statement.
func (d DB) Exec(ctx context.Context, query string, args ...any) (tag pgconn.CommandTag, err error) {
	conn, giveBack, err := d.borrow(ctx)
	if err != nil {
		return tag, err
	}
	defer giveBack()
	return conn.Exec(ctx, query, args...)
}

// Query runs a statement. Its rows use a connection until they are closed or read to their end. ctx
// bounds the wait for a connection, the statement and the reading. The error is also in the rows,
// which are never nil.
func (d DB) Query(ctx context.Context, query string, args ...any) (pgx.Rows, error) {
	conn, giveBack, err := d.borrow(ctx)
	if err != nil {
		return &rows{err: err, closed: true}, err
	}
	found, err := conn.Query(ctx, query, args...)
	if err != nil {
		giveBack()
		return found, err
	}
	return &lentRows{found, giveBack}, nil
}

// QueryRow is Query for one row. Its Scan returns the error, and pgx.ErrNoRows without a row.
func (d DB) QueryRow(ctx context.Context, query string, args ...any) pgx.Row {
	found, _ := d.Query(ctx, query, args...) // row.Scan returns the error of found
	return row{found}
}

func (d DB) borrow(ctx context.Context) (*pgx.Conn, func(), error) {
	if d.db == nil {
		return nil, nil, errors.New("sqltx: the *sql.DB is nil")
	}
	conn, giveBack, err := pgtx.Borrow(ctx, d.db)
	if err != nil {
		return nil, nil, errs.Errorf("sqltx: %w", pgtx.ExplainLogin(err))
	}
	return conn, giveBack, nil
}

// lentRows are rows of a connection that returns to the pool when they end.
type lentRows struct {
	pgx.Rows
	giveBack func() // nil once it was called
}

// Close implements pgx.Rows.
func (r *lentRows) Close() {
	r.Rows.Close()
	if r.giveBack != nil {
		r.giveBack()
		r.giveBack = nil
	}
}

// Next implements pgx.Rows.
func (r *lentRows) Next() bool {
	next := r.Rows.Next()
	if !next {
		r.Close()
	}
	return next
}

// Scan implements pgx.Rows.
func (r *lentRows) Scan(dest ...any) error {
	err := r.Rows.Scan(dest...)
	if err != nil {
		r.Close() // pgx has closed the rows
	}
	return err
}

// Values implements pgx.Rows.
func (r *lentRows) Values() ([]any, error) {
	values, err := r.Rows.Values()
	if err != nil {
		r.Close() // pgx has closed the rows
	}
	return values, err
}

// Conn returns nil: the connection belongs to database/sql.
func (r *lentRows) Conn() *pgx.Conn { return nil }
