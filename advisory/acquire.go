package advisory

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/backoff"
	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/pgtx"
)

// Acquire locks the key in a session of its own, for work that is not one transaction and may
// take long. It waits until ctx is done or the time set by WithTimeout has passed.
//
// On success the lock is held until Release, or until the session's connection ends, and then
// Done is closed. ctx does not bound the holding. The connection is removed from the pool, which
// opens another when it needs one; Release closes it.
//
// On failure nothing is held. The error is a *NotAcquiredError (errors.Is ErrNotAcquired) if the
// wait ended: with ErrTimeout, ErrPoolExhausted, or ctx's error and cause. It is ErrPooled behind
// a pooler in transaction mode, ErrInvalidKey, ErrInvalidOption, or the server's.
//
// Acquire polls with pauses of up to 375 ms, uses a connection only for an attempt, and holds no
// snapshot meanwhile. Of the goroutines that want the same key from the same pool, one polls and
// the others wait behind it, first come, first served. The processes are not served in order.
// Two sessions of one process exclude each other like those of two processes.
func Acquire(ctx context.Context, pool *pgxpool.Pool, key Key, opts ...SessionOption) (*Session, error) {
	a, err := newAcquisition(ctx, pool, key, opts)
	if err != nil {
		return nil, err
	}
	leave, err := a.enter(ctx, &sessionAdmission, pool, 1)
	if err != nil {
		return nil, err
	}
	s, err := a.poll(ctx, leave)
	if err != nil {
		leave()
	}
	return s, err
}

// TryAcquire makes one attempt, which ctx bounds. If another session holds the lock, the error is
// a *NotAcquiredError (errors.Is ErrNotAcquired) without a cause. Otherwise TryAcquire is like
// Acquire.
func TryAcquire(ctx context.Context, pool *pgxpool.Pool, key Key, opts ...SessionOption) (*Session, error) {
	a, err := newAcquisition(ctx, pool, key, opts)
	if err != nil {
		return nil, err
	}
	s, err := a.attempt(ctx, func() {})
	if errors.Is(err, errBusy) {
		return nil, a.notAcquired(nil)
	}
	return s, err
}

// acquisition is one call of Acquire or TryAcquire.
type acquisition struct {
	*call
	pool *pgxpool.Pool
}

func newAcquisition(ctx context.Context, pool *pgxpool.Pool, key Key, opts []SessionOption) (*acquisition, error) {
	cfg := newConfig()
	for _, o := range opts {
		if err := o.applySession(&cfg); err != nil {
			return nil, err
		}
	}
	c, err := newCall([]Key{key}, false, cfg)
	switch {
	case err != nil:
		return nil, err
	case pool == nil:
		return nil, invalidOption("the pool is nil")
	case ctx.Err() != nil:
		return nil, c.notAcquired(errs.ContextErr(ctx))
	}
	return &acquisition{c, pool}, nil
}

// sessionAdmission admits one call of Acquire for each key. A holder keeps its place until it has
// released, so that the others need not poll meanwhile.
var sessionAdmission admission

// poll repeats the attempt until the lock is granted, the timeout has passed, or ctx is done.
func (a *acquisition) poll(ctx context.Context, leave func()) (*Session, error) {
	pauses := backoff.Backoff{First: firstPause, Max: maxPause}
	for {
		s, err := a.attempt(ctx, leave)
		if !errors.Is(err, errBusy) {
			return s, err
		}
		d, timeout := pauses.Next(), false
		if end := a.timeoutAt(); !end.IsZero() && time.Until(end) <= d {
			d, timeout = max(time.Until(end), 0), true
		}
		if backoff.Sleep(ctx, d) != nil {
			return nil, a.notAcquired(errs.ContextErr(ctx))
		}
		if timeout {
			return nil, a.notAcquired(ErrTimeout)
		}
	}
}

// attempt tries the lock once. It returns errBusy, and returns the connection to the pool, if
// another session holds the lock. A connection that may hold the lock unnoticed is closed.
func (a *acquisition) attempt(ctx context.Context, leave func()) (*Session, error) {
	conn, err := a.connFrom(ctx, a.pool)
	if err != nil {
		return nil, err
	}
	pid, err := directBackendPID(ctx, conn.Conn())
	if err != nil {
		conn.Release() // it holds nothing
		return nil, a.explain(ctx, err)
	}
	held, err := a.try(ctx, conn.Conn())
	if err == nil && !held {
		conn.Release()
		return nil, errBusy
	}
	session := conn.Hijack()
	switch {
	case err != nil:
		err = a.explain(ctx, err)
	case ctx.Err() != nil:
		err = a.notAcquired(errs.ContextErr(ctx))
	default:
		return newSession(ctx, a.keys[0], session, pid, a.cfg.keepAlive, leave), nil
	}
	return nil, errs.Join(err, closeUnlocked(ctx, session))
}

const unlockAll = "SELECT pg_advisory_unlock_all()"

// try tries the lock. It first unlocks keys that an earlier user of the pooled connection left
// locked: the server grants a session again what the session holds already.
func (a *acquisition) try(ctx context.Context, conn *pgx.Conn) (held bool, err error) {
	err = pgtx.Run(ctx, conn, pgtx.LetFinish, func(ctx context.Context) error {
		batch := &pgx.Batch{}
		batch.Queue(unlockAll)
		tried := "pg_try_advisory_lock" + arguments(a.keys[0].paired, 1)
		sql := strings.Replace(acquireSQL, "pg_try_advisory_lock($1)", tried, 1)
		batch.Queue(sql, a.keys[0].args()...).QueryRow(func(row pgx.Row) error { return row.Scan(&held, nil) })
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
