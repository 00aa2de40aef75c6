package sqltx_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/pglock/sqltx"
)

// alien is a driver that is not pgx's. A liberal one accepts any argument.
type alien struct{ liberal bool }

func (d alien) Connect(context.Context) (driver.Conn, error) { return alienConn(d), nil }
func (d alien) Driver() driver.Driver                        { return nil }

type alienConn struct{ liberal bool }

func (c alienConn) Prepare(string) (driver.Stmt, error) { return alienStmt(c), nil }
func (c alienConn) Close() error                        { return nil }
func (c alienConn) Begin() (driver.Tx, error)           { return c, nil }
func (c alienConn) Commit() error                       { return nil }
func (c alienConn) Rollback() error                     { return nil }
func (c alienConn) CheckNamedValue(*driver.NamedValue) error {
	if c.liberal {
		return nil
	}
	return driver.ErrSkip
}

type alienStmt struct{ liberal bool }

func (s alienStmt) Close() error                               { return nil }
func (s alienStmt) NumInput() int                              { return -1 }
func (s alienStmt) Exec([]driver.Value) (driver.Result, error) { return driver.RowsAffected(1), nil }
func (s alienStmt) Query([]driver.Value) (driver.Rows, error)  { return alienRows{}, nil }

type alienRows struct{}

func (alienRows) Columns() []string         { return []string{"c"} }
func (alienRows) Close() error              { return nil }
func (alienRows) Next([]driver.Value) error { return io.EOF }

func TestOtherDriversAreRefused(t *testing.T) {
	t.Parallel()
	for name, d := range map[string]alien{"strict": {}, "liberal": {liberal: true}} {
		db := sql.OpenDB(d)
		std, err := db.BeginTx(t.Context(), nil)
		ok(t, err)
		tx := sqltx.Wrap(std)
		_, execErr := tx.Exec(t.Context(), "SELECT 1")
		for what, err := range map[string]error{
			"Exec": execErr, "Query": queryError(t, tx), "Scan": tx.QueryRow(t.Context(), "SELECT 1").Scan(nil),
			"Lock": advisory.Lock(t.Context(), tx, advisory.KeyFromInt64(1)),
		} {
			if !errors.Is(err, advisory.ErrDriver) {
				t.Errorf("%s, %s: %v", name, what, err)
			}
		}
		ok(t, db.Close())
	}
}

// tracing wraps pgx's driver as tracers do, and hides what they often fail to pass on: the types of
// columns.
type tracing struct{ driver.Connector }

func (d tracing) Connect(ctx context.Context) (driver.Conn, error) {
	c, err := d.Connector.Connect(ctx)
	return tracingConn{c}, err
}

type tracingConn struct{ driver.Conn }

func (c tracingConn) BeginTx(ctx context.Context, o driver.TxOptions) (driver.Tx, error) {
	return c.Conn.(driver.ConnBeginTx).BeginTx(ctx, o)
}

func (c tracingConn) ExecContext(ctx context.Context, q string, args []driver.NamedValue) (driver.Result, error) {
	return c.Conn.(driver.ExecerContext).ExecContext(ctx, q, args)
}

func (c tracingConn) QueryContext(ctx context.Context, q string, args []driver.NamedValue) (driver.Rows, error) {
	rows, err := c.Conn.(driver.QueryerContext).QueryContext(ctx, q, args)
	return untyped{rows}, err
}

func (c tracingConn) CheckNamedValue(v *driver.NamedValue) error {
	return c.Conn.(driver.NamedValueChecker).CheckNamedValue(v)
}

type untyped struct{ driver.Rows }

func TestWrappedDriversPass(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	db := sql.OpenDB(tracing{stdlib.GetConnector(*f.pool.Config().ConnConfig)})
	t.Cleanup(func() { _ = db.Close() })
	std, err := db.BeginTx(t.Context(), nil)
	ok(t, err)
	defer func() { _ = std.Rollback() }()
	tx := sqltx.Wrap(std)
	ok(t, advisory.Lock(t.Context(), tx, advisory.KeyFromInt64(1<<40), advisory.WithTimeout(time.Second)))
	var row struct {
		N    int32
		S    *string
		B    bool
		At   time.Time
		Raw  []byte
		Tags []string
	}
	err = tx.QueryRow(t.Context(), `SELECT 5, NULL::text, true, '2024-02-29 12:00+00'::timestamptz, '\x0102'::bytea, '{a,b}'::text[]`).
		Scan(&row.N, &row.S, &row.B, &row.At, &row.Raw, &row.Tags)
	if err != nil || row.N != 5 || row.S != nil || !row.B || row.At.Unix() != 1709208000 || string(row.Raw) != "\x01\x02" || len(row.Tags) != 2 {
		t.Errorf("%+v %v", row, err)
	}
}
