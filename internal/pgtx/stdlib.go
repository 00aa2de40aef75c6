package pgtx

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/internal/errs"
)

// Spy is the only argument of a statement that is sent through database/sql. pgx lets it insert the
// real arguments, and shows it the connection, which database/sql hides. It passes through drivers
// that wrap pgx's, while another driver can't send it.
type Spy struct {
	Args   []any
	Found  func(conn *pgx.Conn) error // an error keeps the statement from being sent
	Passed bool                       // pgx has called Found
}

// RewriteQuery implements pgx.QueryRewriter.
func (s *Spy) RewriteQuery(ctx context.Context, conn *pgx.Conn, query string, _ []any) (string, []any, error) {
	s.Passed = true
	if err := s.Found(conn); err != nil {
		return "", nil, err
	}
	if len(s.Args) > 0 {
		if own, ok := s.Args[0].(pgx.QueryRewriter); ok {
			return own.RewriteQuery(ctx, conn, query, s.Args[1:])
		}
	}
	return query, s.Args, nil
}

// Borrow takes a connection out of db, and waits for one until ctx is done. The caller must call
// release, which returns the connection, or closes it if it is closed, busy or in a transaction by
// then. If db does not run on pgx's driver, the error wraps errs.ErrDriver.
func Borrow(ctx context.Context, db *sql.DB) (conn *pgx.Conn, release func(), err error) {
	lent, err := db.Conn(ctx)
	if err != nil {
		return nil, nil, err
	}
	conn, err = connUnder(ctx, lent)
	if err != nil {
		_ = lent.Close() // returns it unused
		return nil, nil, err
	}
	return conn, func() {
		if conn.IsClosed() || conn.PgConn().IsBusy() || conn.PgConn().TxStatus() != 'I' {
			_ = lent.Raw(func(any) error { return driver.ErrBadConn }) // closes it
		}
		_ = lent.Close() // the connection's own errors have been returned by its statements
	}, nil
}

var errFound = errors.New("found")

// connUnder returns the connection of pgx under lent, and sends nothing.
func connUnder(ctx context.Context, lent *sql.Conn) (conn *pgx.Conn, err error) {
	err = lent.Raw(func(driverConn any) error {
		conn = Conn(driverConn) // a *stdlib.Conn has the method
		return nil
	})
	if err != nil || conn != nil {
		return conn, err
	}
	spy := &Spy{Found: func(c *pgx.Conn) error { conn = c; return errFound }}
	_, err = lent.ExecContext(ctx, "", spy)
	switch {
	case conn != nil:
		return conn, nil
	case ctx.Err() != nil || errors.Is(err, driver.ErrBadConn):
		return nil, err
	case err != nil:
		return nil, errs.Errorf("%w: %w", errs.ErrDriver, err)
	}
	return nil, errs.ErrDriver
}
