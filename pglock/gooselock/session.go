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

// keyNamespace keeps the keys of migrations apart from those of applications.
const keyNamespace = "pglock goose"

// NewSessionLocker returns the SessionLocker of the named lock. It does not contact the database.
func NewSessionLocker(name string, opts ...Option) (*SessionLocker, error) {
	cfg, err := newConfig(opts)
	if err != nil {
		return nil, err
	}
	if name == "" {
		return nil, errs.Errorf("%w: NewSessionLocker: the name is empty", advisory.ErrInvalidOption)
	}
	ids := []int64{advisory.NewKey(keyNamespace, name).Int64()}
	if cfg.key != nil {
		ids = append(ids, *cfg.key)
	}
	return &SessionLocker{name, ids, cfg}, nil
}

// SessionLock polls for the lock until ctx ends or the time of WithTimeout has passed. The error is
// then a *pglock.WaitError (errors.Is pglock.ErrNotAcquired) whose text names the session that
// holds the lock, and conn holds no lock. With pgx's driver, the error behind a pooler in
// transaction mode is advisory.ErrPooled. After any other error SessionLock closes the connection,
// so that no lock is left on it.
func (l *SessionLocker) SessionLock(ctx context.Context, conn *sql.Conn) error {
	start := time.Now()
	bounded, cancel := l.cfg.waitContext(ctx)
	defer cancel()
	if err := refusePooler(bounded, conn); err != nil {
		if bounded.Err() != nil {
			return l.waitEnded(bounded, start, nil)
		}
		return errs.Errorf("gooselock: acquire %q: %w", l.name, err)
	}
	held := 0 // of l.ids: the first is kept while the second is awaited
	pauses := backoff.Backoff{First: 10 * time.Millisecond, Max: 400 * time.Millisecond}
	for {
		var ok bool
		err := conn.QueryRowContext(bounded, "SELECT pg_try_advisory_lock($1)", l.ids[held]).Scan(&ok)
		if ok {
			held++
			pauses.Reset()
		}
		switch {
		case err != nil && bounded.Err() != nil:
			discard(conn)
			return l.waitEnded(bounded, start, nil)
		case err != nil:
			discard(conn)
			return errs.Errorf("gooselock: acquire %q: %w", l.name, err)
		case held == len(l.ids):
			return nil
		case ok:
			continue
		}
		if pauses.Sleep(bounded) != nil {
			err := l.waitEnded(bounded, start, readHolder(ctx, conn, l.ids[held]))
			if held > 0 {
				discard(conn)
			}
			return err
		}
	}
}

// waitEnded returns the error for a wait that has ended. The holder is nil if it is not known.
func (l *SessionLocker) waitEnded(ctx context.Context, start time.Time, holder error) error {
	return &pglock.WaitError{Name: l.name, Waited: time.Since(start), Cause: errs.ContextErr(ctx), Last: holder}
}

//go:embed sql/holder.sql
var holderSQL string

// readHolder returns a text about the session that holds the lock, as an error, or nil if the
// server reports none. The server reads two views one after the other, so a session that began in
// between has no name at the first read.
func readHolder(ctx context.Context, conn *sql.Conn, id int64) error {
	pid, name := 0, ""
	for range 2 {
		err := pgtx.CleanUp(ctx, func(ctx context.Context) error {
			return conn.QueryRowContext(ctx, holderSQL, id).Scan(&pid, &name)
		})
		switch {
		case err != nil:
			return nil //nolint:nilerr // the text is a help only
		case name != "":
			return errors.New(errs.OneLine(fmt.Sprintf("held by server process %d (%s)", pid, name)))
		}
	}
	return fmt.Errorf("held by server process %d", pid)
}

// SessionUnlock releases the lock, also if ctx has ended, in a bounded time. If the session did not
// hold the lock, a migration has released it, or a pooler has lent the session to others: the error
// wraps pglock.ErrLost, and others may have migrated at the same time. After an error SessionUnlock
// closes the connection, which releases the lock.
func (l *SessionLocker) SessionUnlock(ctx context.Context, conn *sql.Conn) error {
	err := pgtx.CleanUp(ctx, func(ctx context.Context) error {
		for _, id := range slices.Backward(l.ids) {
			var held bool
			if err := conn.QueryRowContext(ctx, "SELECT pg_advisory_unlock($1)", id).Scan(&held); err != nil {
				return err
			}
			if !held {
				return fmt.Errorf("the session did not hold it: %w", pglock.ErrLost)
			}
		}
		return nil
	})
	if err != nil {
		discard(conn)
		return errs.Errorf("gooselock: release %q: closed the connection: %w", l.name, err)
	}
	return nil
}

// refusePooler returns advisory.ErrPooled behind a pooler in transaction mode, with pgx's driver.
func refusePooler(ctx context.Context, conn *sql.Conn) error {
	return conn.Raw(func(c any) error {
		if pgxConn, ok := c.(*stdlib.Conn); ok {
			return advisory.EnsureDirect(ctx, pgxConn.Conn())
		}
		return nil
	})
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
