package pgtest

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Logins counts the rejected logins of the pools that it watches: a server rejects them between a
// change of the password and its arrival.
type Logins struct {
	Rejecting atomic.Bool
	Rejected  atomic.Int64

	name        sync.Once
	application string // of the sessions
}

// Watch is an option of Pool and PoolOn.
func (l *Logins) Watch(c *pgxpool.Config) {
	l.name.Do(func() { l.application = fmt.Sprint("rotation", time.Now().UnixNano()) })
	c.ConnConfig.RuntimeParams["application_name"] = l.application
	c.ConnConfig.ValidateConnect = l.Validate
}

// Validate is a pgconn.ValidateConnectFunc.
func (l *Logins) Validate(context.Context, *pgconn.PgConn) error {
	if !l.Rejecting.Load() {
		return nil
	}
	l.Rejected.Add(1)
	return &pgconn.PgError{Severity: "FATAL", Code: "28P01", Message: "password authentication failed"}
}

// Reject rejects all logins from now on, and ends the sessions.
func (l *Logins) Reject(tb testing.TB, admin *pgxpool.Pool) {
	tb.Helper()
	l.Rejecting.Store(true)
	_, err := admin.Exec(context.Background(), "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE starts_with(application_name, $1)", l.application)
	if err != nil {
		tb.Fatal(err)
	}
}
