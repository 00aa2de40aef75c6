package sqltx

import (
	"context"
	"database/sql"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/pgtx"
)

// WrapDB returns db with the statements of a pgx pool, for functions such as fencing.Protect,
// fencing.Advance and once.Get. It sends nothing, there is nothing to close, and the result is safe for
// concurrent use. Each statement runs by itself, as pgx runs it, on a connection of db, which rows use
// until they are closed or read to their end. The context bounds the wait for a connection, the
// statement and the reading. On another driver than pgx's the statements return advisory.ErrDriver.
func WrapDB(db *sql.DB) fencing.DB { return pool{db} }

type pool struct{ db *sql.DB }

// Exec implements fencing.DB.
func (d pool) Exec(ctx context.Context, query string, args ...any) (tag pgconn.CommandTag, err error) {
	conn, done, err := d.borrow(ctx)
	if err != nil {
		return tag, err
	}
	defer done()
	return conn.Exec(ctx, query, args...)
}

// Query implements fencing.DB. The error is also in the rows, which are never nil.
func (d pool) Query(ctx context.Context, query string, args ...any) (pgx.Rows, error) {
	conn, done, err := d.borrow(ctx)
	if err != nil {
		return &rows{err: err, closed: true}, err
	}
	found, err := conn.Query(ctx, query, args...)
	if err != nil {
		done()
		return found, err
	}
	return &lentRows{found, done}, nil
}

// QueryRow implements fencing.DB.
func (d pool) QueryRow(ctx context.Context, query string, args ...any) pgx.Row {
	found, _ := d.Query(ctx, query, args...) // row.Scan returns the error of found
	return row{found}
}

func (d pool) borrow(ctx context.Context) (*pgx.Conn, func(), error) {
	if d.db == nil {
		return nil, nil, errors.New("sqltx: the *sql.DB is nil")
	}
	conn, done, err := pgtx.Borrow(ctx, d.db)
	if err != nil {
		return nil, nil, errs.Errorf("sqltx: %w", pgtx.ExplainLogin(err))
	}
	return conn, done, nil
}

// lentRows are rows of a connection that returns to the pool when they end.
type lentRows struct {
	pgx.Rows
	done func() // returns the connection; nil once it was called
}

// Close implements pgx.Rows.
func (r *lentRows) Close() {
	r.Rows.Close()
	if r.done != nil {
		r.done()
		r.done = nil
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
func (r *lentRows) Scan(dest ...any) error { return r.closeOn(r.Rows.Scan(dest...)) }

// Values implements pgx.Rows.
func (r *lentRows) Values() ([]any, error) {
	values, err := r.Rows.Values()
	return values, r.closeOn(err)
}

func (r *lentRows) closeOn(err error) error {
	if err != nil {
		r.Close() // pgx has closed the rows
	}
	return err
}

// Conn returns nil: the connection belongs to database/sql.
func (r *lentRows) Conn() *pgx.Conn { return nil }
