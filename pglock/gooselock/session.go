package gooselock

import (
	"context"
	"database/sql"
	"database/sql/driver"
	_ "embed" // holderSQL
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/internal/backoff"
	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/pgtx"
	"github.com/pglock/pglock-go/pglock"
)

// SessionLocker is a lock.SessionLocker of goose: an advisory lock on the connection that migrates.
// It works with any PostgreSQL driver of database/sql. It is safe for concurrent use.
type SessionLocker struct {
	name string
	ids  []int64 // its own, then by WithKey another program's: the order of locking
	cfg  config
}

// KeyNamespace is the namespace of the lock's key, as in advisory.NewKey, to find it in pg_locks.
const KeyNamespace = "pglock goose"

// NewSessionLocker returns the SessionLocker of the named lock. It does not contact the database.
func NewSessionLocker(name string, opts ...Option) (*SessionLocker, error) {
	cfg, err := newConfig(opts)
	if err != nil {
		return nil, err
	}
	if name == "" {
		return nil, errs.Errorf("%w: NewSessionLocker: the name is empty", advisory.ErrInvalidOption)
	}
	id := advisory.NewKey(KeyNamespace, name).Int64()
	ids := []int64{id}
	if cfg.key != nil {
		ids = append(ids, *cfg.key)
	}
	return &SessionLocker{name, ids, cfg}, nil
}

// SessionLock polls for the lock until ctx ends or the time of WithTimeout is over. The error is
// then a *BusyError (errors.Is pglock.ErrNotAcquired) that names the session that holds the lock,
// and conn holds no lock. With pgx's driver, the error behind a pooler in transaction mode is
// advisory.ErrPooled. After any other error SessionLock closes the connection, so that no lock is
// left on it.
func (l *SessionLocker) SessionLock(ctx context.Context, conn *sql.Conn) error {
	start := time.Now()
	bounded, cancel := l.cfg.waitContext(ctx)
	defer cancel()
	if err := refusePooler(bounded, conn); err != nil {
		if bounded.Err() != nil {
			return l.busy(bounded, start)
		}
		return err
	}
	held := 0 // of l.ids: the first is kept while the second is awaited
	pauses := backoff.Backoff{First: 10 * time.Millisecond, Max: 400 * time.Millisecond}
	for {
		ok, err := tryLock(bounded, conn, l.ids[held])
		if ok {
			held++
			pauses.Reset()
		}
		switch {
		case err != nil && bounded.Err() != nil:
			discard(conn)
			return l.busy(bounded, start)
		case err != nil:
			discard(conn)
			return errs.Errorf("gooselock: acquire %q: %w", l.name, err)
		case held == len(l.ids):
			return nil
		case ok:
			continue
		}
		if pauses.Sleep(bounded) != nil {
			e := l.busy(bounded, start)
			_ = pgtx.CleanUp(ctx, func(ctx context.Context) error { return e.readHolder(ctx, conn, l.ids[held]) })
			if held > 0 {
				discard(conn)
			}
			return e
		}
	}
}

// BusyError reports that a wait for a session lock ended, and which session of the server holds the
// lock. errors.Is finds pglock.ErrNotAcquired and the cause: pglock.ErrTimeout, or the context's.
type BusyError struct {
	Name   string
	PID    int    // of the server process; 0 if it is not known
	Holder string // its application_name, empty if it has none or the role may not see it
	Waited time.Duration
	Cause  error
}

func (e *BusyError) Error() string {
	holder := "an unknown session"
	if e.PID != 0 {
		holder = fmt.Sprintf("server process %d", e.PID)
	}
	if e.Holder != "" {
		holder += fmt.Sprintf(" (%s)", e.Holder)
	}
	return fmt.Sprintf("gooselock: acquire %q: held by %s: gave up after %v: %s", e.Name, errs.OneLine(holder), e.Waited.Round(time.Millisecond), errs.Reason(e.Cause))
}

// Unwrap makes errors.Is find pglock.ErrNotAcquired and the cause.
func (e *BusyError) Unwrap() []error { return []error{pglock.ErrNotAcquired, e.Cause} }

// busy returns the error for a wait that has ended, without the holder.
func (l *SessionLocker) busy(ctx context.Context, start time.Time) *BusyError {
	return &BusyError{Name: l.name, Waited: time.Since(start), Cause: errs.ContextErr(ctx)}
}

func tryLock(ctx context.Context, conn *sql.Conn, id int64) (ok bool, err error) {
	err = conn.QueryRowContext(ctx, "SELECT pg_try_advisory_lock($1)", id).Scan(&ok)
	return ok, err
}

//go:embed sql/holder.sql
var holderSQL string

// readHolder adds the holder to the error, if the server reports one. The server reads two views
// one after the other, so a session that began in between has no name at the first read.
func (e *BusyError) readHolder(ctx context.Context, conn *sql.Conn, id int64) error {
	for range 2 {
		if err := conn.QueryRowContext(ctx, holderSQL, id).Scan(&e.PID, &e.Holder); err != nil || e.Holder != "" {
			return err
		}
	}
	return nil
}

// SessionUnlock releases the lock, also if ctx has ended, in a bounded time. If the session did not
// hold the lock, a migration has released it, or a pooler has lent the session to others: the error
// wraps pglock.ErrLost, and others may have migrated at the same time. After an error SessionUnlock
// closes the connection, which releases the lock.
func (l *SessionLocker) SessionUnlock(ctx context.Context, conn *sql.Conn) error {
	held := true
	err := pgtx.CleanUp(ctx, func(ctx context.Context) error {
		for _, id := range slices.Backward(l.ids) {
			var ok bool
			if err := conn.QueryRowContext(ctx, "SELECT pg_advisory_unlock($1)", id).Scan(&ok); err != nil {
				return err
			}
			held = held && ok
		}
		return nil
	})
	switch {
	case err != nil:
		discard(conn)
		return errs.Errorf("gooselock: release %q: closed the connection: %w", l.name, err)
	case !held:
		discard(conn)
		return errs.Errorf("gooselock: release %q: the session did not hold it: %w", l.name, pglock.ErrLost)
	}
	return nil
}

// refusePooler returns advisory.ErrPooled behind a pooler in transaction mode, with pgx's driver.
func refusePooler(ctx context.Context, conn *sql.Conn) error {
	err := conn.Raw(func(c any) error {
		if pgxConn, ok := c.(*stdlib.Conn); ok {
			return advisory.EnsureDirect(ctx, pgxConn.Conn())
		}
		return nil
	})
	if err != nil && !errors.Is(err, advisory.ErrPooled) {
		return errs.Errorf("gooselock: %w", err)
	}
	return err
}

// discard closes a connection that may hold a lock, so that it does not return to its pool.
func discard(conn *sql.Conn) {
	_ = conn.Raw(func(c any) error {
		// After ErrBadConn, a driver made by stdlib.OpenDBFromPool returns the connection to pgx's
		// pool. The pool drops it only if it is closed.
		if pgxConn, ok := c.(*stdlib.Conn); ok {
			_ = pgtx.CleanUp(context.Background(), pgxConn.Conn().Close) // closed in any case
		}
		return driver.ErrBadConn
	})
}
