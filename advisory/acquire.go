package advisory

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/backoff"
	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/pgtx"
)

// Acquire locks the key in a separate session, for work that is not one transaction and may take
// long. It waits until ctx is done or the time set by WithTimeout has passed.
//
// On success the lock is held until Release, or until the session's connection ends, and then its
// Context is done. ctx does not bound the holding. The connection is removed from the pool, which
// opens another when it needs one; Release closes it.
//
// On failure nothing is held, and the error is a *NotAcquiredError (errors.Is ErrNotAcquired) if
// the wait ended: with ErrTimeout, ErrPoolExhausted, or ctx's error and cause. It is ErrPooled
// behind a pooler in transaction mode, ErrInvalidOption, or the server's.
//
// Acquire polls with pauses of up to 375 ms, uses a connection only for an attempt, and holds no
// snapshot meanwhile. Of the goroutines that want the same key from the same pool, one polls and
// the others wait behind it, first come, first served. The processes are not served in order.
// Two sessions of one process exclude each other like those of two processes.
func Acquire(ctx context.Context, pool *pgxpool.Pool, key Key, opts ...SessionOption) (*Session, error) {
	c, err := newSessionCall(ctx, pool, key, opts)
	if err != nil {
		return nil, err
	}
	leave, err := c.enter(ctx, sessionAdmission, pool, 1)
	if err != nil {
		return nil, err
	}
	s, err := c.poll(ctx, pool, leave)
	if err != nil {
		leave()
	}
	return s, err
}

// TryAcquire makes one attempt, which ctx bounds. If another session holds the lock, the error is
// a *NotAcquiredError (errors.Is ErrNotAcquired) without a cause. Otherwise TryAcquire is like
// Acquire.
func TryAcquire(ctx context.Context, pool *pgxpool.Pool, key Key, opts ...SessionOption) (*Session, error) {
	c, err := newSessionCall(ctx, pool, key, opts)
	if err != nil {
		return nil, err
	}
	s, err := c.attempt(ctx, pool, func() {})
	if errors.Is(err, errBusy) {
		return nil, c.notAcquired(nil)
	}
	return s, err
}

func newSessionCall(ctx context.Context, pool *pgxpool.Pool, key Key, opts []SessionOption) (*call, error) {
	c, err := newCall([]Key{key}, false, opts)
	switch {
	case err != nil:
		return nil, err
	case pool == nil:
		return nil, errs.InvalidOption("advisory", "the pool is nil")
	case ctx.Err() != nil:
		return nil, c.notAcquired(errs.ContextErr(ctx))
	}
	return c, nil
}

// sessionAdmission admits one call of Acquire for each key. A holder keeps its place until it has
// released, so that the others need not poll meanwhile.
var sessionAdmission = newAdmission()

// poll repeats the attempt until the lock is granted, the timeout has passed, or ctx is done.
func (c *call) poll(ctx context.Context, pool *pgxpool.Pool, leave func()) (*Session, error) {
	pauses := backoff.Backoff{First: firstPause, Max: maxPause}
	for {
		s, err := c.attempt(ctx, pool, leave)
		if !errors.Is(err, errBusy) {
			return s, err
		}
		d, end := pauses.Next(), c.timeoutAt()
		last := !end.IsZero() && time.Until(end) <= d
		if last {
			d = max(time.Until(end), 0)
		}
		switch {
		case backoff.Sleep(ctx, d) != nil:
			return nil, c.notAcquired(errs.ContextErr(ctx))
		case last:
			return nil, c.notAcquired(ErrTimeout)
		}
	}
}

// attempt tries the lock once. If another session holds the lock, it returns errBusy, and the
// connection to the pool. A connection that may hold the lock unnoticed is closed.
func (c *call) attempt(ctx context.Context, pool *pgxpool.Pool, leave func()) (*Session, error) {
	conn, err := c.connFrom(ctx, pool)
	if err != nil {
		return nil, err
	}
	pid, err := directBackendPID(ctx, conn.Conn())
	if err != nil {
		conn.Release() // it holds nothing
		return nil, c.explain(ctx, err)
	}
	held, err := c.try(ctx, conn.Conn())
	if err == nil && !held {
		conn.Release()
		return nil, errBusy
	}
	session := conn.Hijack()
	switch {
	case err != nil:
		err = c.explain(ctx, err)
	case ctx.Err() != nil:
		err = c.notAcquired(errs.ContextErr(ctx))
	default:
		return newSession(ctx, c.keys[0], session, pid, c.cfg.keepAlive, leave), nil
	}
	return nil, errs.Join(err, closeUnlocked(ctx, session))
}

const unlockAll = "SELECT pg_advisory_unlock_all()"

// try tries the lock, after it has unlocked keys that an earlier user of the pooled connection left
// locked, because the server grants a session again what the session holds already.
func (c *call) try(ctx context.Context, conn *pgx.Conn) (held bool, err error) {
	err = pgtx.Run(ctx, conn, pgtx.LetFinish, func(ctx context.Context) error {
		batch := &pgx.Batch{}
		batch.Queue(unlockAll)
		batch.Queue(statements["acquire"], c.keys[0].id).QueryRow(func(row pgx.Row) error { return row.Scan(&held, nil) })
		return conn.SendBatch(ctx, batch).Close()
	})
	return held, err
}

// closeUnlocked closes a connection that may hold locks. It unlocks them first: the server notices
// the end of a connection a moment later, and until then the caller's next attempt would fail.
func closeUnlocked(ctx context.Context, conn *pgx.Conn) error {
	if !conn.IsClosed() {
		// If it fails, the end of the connection unlocks.
		_ = pgtx.CleanUp(ctx, func(ctx context.Context) error {
			_, err := conn.Exec(ctx, unlockAll)
			return err
		})
	}
	return pgtx.CleanUp(ctx, conn.Close)
}
