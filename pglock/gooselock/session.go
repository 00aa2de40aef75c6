package gooselock

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/internal/await"
)

// SessionLocker is a lock.SessionLocker of goose: an advisory lock on the connection that migrates. It works with
// any driver of database/sql. It is safe for concurrent use.
type SessionLocker struct {
	name string
	id   int64
	cfg  config
}

// KeyNamespace is the namespace of the key, as in advisory.NewKey, for those who look at pg_locks.
const KeyNamespace = "pglock goose"

// NewSessionLocker returns the lock of that name. It asks nobody.
func NewSessionLocker(name string, opts ...Option) (*SessionLocker, error) {
	cfg, err := newConfig(opts)
	if err != nil {
		return nil, err
	}
	if name == "" {
		return nil, fmt.Errorf("%w: the lock has no name", advisory.ErrInvalidKey)
	}
	id, _ := advisory.NewKey(KeyNamespace, name).Int64()
	return &SessionLocker{name, id, cfg}, nil
}

// SessionLock waits for the lock, asking again and again, until ctx is done or WithTimeout is over. Then the error is
// a *BusyError (errors.Is ErrNotAcquired) that tells which session holds the lock, and it is not held. With pgx's
// driver a pooler in transaction mode is advisory.ErrPooled. After any other error the connection is closed, so that no
// lock can be left on it.
func (l *SessionLocker) SessionLock(ctx context.Context, conn *sql.Conn) error {
	begun := time.Now()
	bounded, cancel := l.cfg.bound(ctx)
	defer cancel()
	if err := refusePooler(bounded, conn); err != nil {
		if bounded.Err() != nil {
			return &BusyError{Name: l.name, Waited: time.Since(begun), Cause: await.Ended(bounded)}
		}
		return err
	}
	for pause := firstPause; ; pause = min(2*pause, maxPause) {
		got, err := l.try(bounded, conn)
		switch {
		case err != nil && bounded.Err() != nil:
			discard(conn)
			return &BusyError{Name: l.name, Waited: time.Since(begun), Cause: await.Ended(bounded)}
		case err != nil:
			discard(conn)
			return fmt.Errorf("gooselock: %q: %w", l.name, err)
		case got:
			return nil
		}
		timer := time.NewTimer(pause/2 + rand.N(pause))
		// If both are ready the next try finds the context done.
		select {
		case <-timer.C:
		case <-bounded.Done():
			timer.Stop()
			e := &BusyError{Name: l.name, Waited: time.Since(begun), Cause: await.Ended(bounded)}
			_ = await.CleanUp(ctx, func(ctx context.Context) error { return l.whoHolds(ctx, conn, e) })
			return e
		}
	}
}

const (
	firstPause = 10 * time.Millisecond
	maxPause   = 400 * time.Millisecond
)

func (l *SessionLocker) try(ctx context.Context, conn *sql.Conn) (got bool, err error) {
	err = conn.QueryRowContext(ctx, "SELECT pg_try_advisory_lock($1)", l.id).Scan(&got)
	return got, err
}

// whoHolds completes the error, as far as the server tells.
func (l *SessionLocker) whoHolds(ctx context.Context, conn *sql.Conn, e *BusyError) error {
	return conn.QueryRowContext(ctx, `
		SELECT l.pid, coalesce(a.application_name, '')
		FROM pg_locks l LEFT JOIN pg_stat_activity a USING (pid)
		WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
		  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
		  AND (l.classid::bigint << 32) | l.objid::bigint = $1`, l.id).Scan(&e.PID, &e.Holder)
}

// SessionUnlock gives the lock back. If the session did not hold it, a migration has given it up or a pooler has
// lent the session to others: the error wraps ErrLost, and others may have migrated meanwhile. After an error the
// connection is closed, and the lock with it. It is also done when ctx has ended, in a bounded time.
func (l *SessionLocker) SessionUnlock(ctx context.Context, conn *sql.Conn) error {
	var held bool
	err := await.CleanUp(ctx, func(ctx context.Context) error {
		return conn.QueryRowContext(ctx, "SELECT pg_advisory_unlock($1)", l.id).Scan(&held)
	})
	switch {
	case err != nil:
		discard(conn)
		return fmt.Errorf("gooselock: unlock of %q, which ends with its connection: %w", l.name, err)
	case !held:
		discard(conn)
		return fmt.Errorf("gooselock: %w: the session did not hold %q at the end", ErrLost, l.name)
	}
	return nil
}

// refusePooler looks where it can: with pgx's driver.
func refusePooler(ctx context.Context, conn *sql.Conn) error {
	err := conn.Raw(func(c any) error {
		if pgxConn, ok := c.(*stdlib.Conn); ok {
			return advisory.EnsureDirect(ctx, pgxConn.Conn())
		}
		return nil
	})
	if err != nil && !errors.Is(err, advisory.ErrPooled) {
		return fmt.Errorf("gooselock: %w", err)
	}
	return err
}

// discard closes a connection on which a lock may be left, instead of giving it back to its pool.
func discard(conn *sql.Conn) {
	_ = conn.Raw(func(any) error { return driver.ErrBadConn })
}
