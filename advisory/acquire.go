package advisory

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/await"
)

// Acquire locks the key for a session of its own, and waits for it until ctx is done or
// WithTimeout is over. It is for work that is no transaction and must go on for long.
//
// On success the lock is held until Release, or until the session's connection ends, which
// Done tells. ctx has no more part in it. The connection is taken out of the pool, which makes
// another one in its place when it needs one; Release closes it.
//
// On failure nothing is held. The error is a *NotAcquiredError (errors.Is ErrNotAcquired) when
// the wait ended, with ErrTimeout, ErrPoolExhausted, or ctx's error and cause; ErrPooled
// behind a pooler in transaction mode; ErrInvalidKey or ErrInvalidOption; or the server's.
//
// It asks again and again, with pauses of up to 375 ms, and uses a connection only while it
// asks: of the goroutines that want the same key from the same pool one asks, the others
// wait in line. A waiter holds no connection and no snapshot. Two sessions of the same process
// exclude each other like those of different ones.
func Acquire(ctx context.Context, pool *pgxpool.Pool, key Key, opts ...SessionOption) (*Session, error) {
	return acquire(ctx, pool, key, opts, true)
}

// TryAcquire asks once. If somebody else holds the lock the error is a *NotAcquiredError
// (errors.Is ErrNotAcquired) without a cause. ctx bounds the asking. For the rest it is like
// Acquire.
func TryAcquire(ctx context.Context, pool *pgxpool.Pool, key Key, opts ...SessionOption) (*Session, error) {
	return acquire(ctx, pool, key, opts, false)
}

// sessionLines are those of Acquire. A holder keeps its place until it has released.
var sessionLines lines

func acquire(ctx context.Context, pool *pgxpool.Pool, key Key, opts []SessionOption, wait bool) (*Session, error) {
	cfg := sessionConfig{poolWait: defaultPoolWait, notice: defaultNotice}
	for _, o := range opts {
		if err := o.applySession(&cfg); err != nil {
			return nil, err
		}
	}
	c, err := newCall([]Key{key}, cfg.shared, cfg.lock)
	switch {
	case err != nil:
		return nil, err
	case pool == nil:
		return nil, invalidOption("the pool is nil")
	case ctx.Err() != nil:
		return nil, c.notAcquired(await.Ended(ctx))
	}
	a := &acquisition{call: c, cfg: cfg, pool: pool}
	if !wait {
		s, err := a.ask(ctx, func() {})
		if errors.Is(err, errBusy) {
			return nil, c.notAcquired(nil)
		}
		return s, err
	}
	return a.wait(ctx)
}

// acquisition is one call of Acquire or TryAcquire.
type acquisition struct {
	*call
	cfg  sessionConfig
	pool *pgxpool.Pool
}

// wait asks until the lock is granted, after those of this process who came before.
func (a *acquisition) wait(ctx context.Context) (*Session, error) {
	leave, err := a.lineUp(ctx)
	if err != nil {
		return nil, err
	}
	var s *Session
	err = a.poll(ctx, func() (err error) {
		s, err = a.ask(ctx, leave)
		return err
	})
	if err != nil {
		leave()
	}
	return s, err
}

// lineUp waits for its turn. An exclusive lock's holder keeps its place until it has
// released, so that the others need not ask meanwhile.
func (a *acquisition) lineUp(ctx context.Context) (leave func(), err error) {
	if a.shared {
		return func() {}, nil
	}
	return a.join(ctx, &sessionLines, place{a.pool, a.keys[0]}, 1)
}

// ask asks once, on a connection that goes back to the pool if somebody else holds the lock.
// It returns errBusy then. A connection that may hold the lock without our knowing is closed.
func (a *acquisition) ask(ctx context.Context, leave func()) (*Session, error) {
	conn, err := a.fromPool(ctx, a.pool, a.cfg.poolWait)
	switch {
	case err == nil:
	case ctx.Err() != nil, errors.Is(err, ErrPoolExhausted):
		return nil, a.notAcquired(err)
	default:
		return nil, fmt.Errorf("advisory: %w", err)
	}
	pid, err := own(ctx, conn.Conn())
	if err != nil {
		conn.Release() // it holds nothing
		return nil, a.explain(ctx, err, false)
	}
	got, err := a.tryOn(ctx, conn.Conn())
	switch {
	case err == nil && !got:
		conn.Release()
		return nil, errBusy
	case err == nil && ctx.Err() == nil:
		session := conn.Hijack()
		if err = keepAlive(ctx, session); err == nil {
			return newSession(ctx, a.call, session, pid, a.cfg, leave), nil
		}
		return nil, errors.Join(a.explain(ctx, err, false), await.CleanUp(ctx, session.Close))
	case err == nil:
		err = await.Ended(ctx)
	}
	return nil, errors.Join(a.explain(ctx, err, false), await.CleanUp(ctx, conn.Hijack().Close))
}

// own returns the process that serves the connection, and refuses one that may be another's
// for the next statement. That was found out once is kept with the connection.
func own(ctx context.Context, conn *pgx.Conn) (pid uint32, err error) {
	const found = "pglock.backend"
	if pid, ok := conn.PgConn().CustomData()[found].(uint32); ok {
		return pid, nil
	}
	if pid, err = servedBy(ctx, conn); err == nil {
		err = refusePooler(ctx, conn, pid)
	}
	if err == nil {
		conn.PgConn().CustomData()[found] = pid
	}
	return pid, err
}

// tryOn asks for the session's lock. What an earlier user of the pooled connection has left
// behind is let go first: a session is granted again what it holds already.
func (a *acquisition) tryOn(ctx context.Context, conn *pgx.Conn) (got bool, err error) {
	err = await.Run(ctx, conn, await.UntilAnswered, func(ctx context.Context) error {
		batch := &pgx.Batch{}
		batch.Queue("SELECT pg_advisory_unlock_all()")
		q := a.keys[0].calling(a.suffixed("pg_try_advisory_lock"))
		batch.Queue(q.sql, q.args...).QueryRow(func(row pgx.Row) error { return row.Scan(&got) })
		return conn.SendBatch(ctx, batch).Close()
	})
	return got, err
}

// keepAlive has the server notice within about eleven seconds that this process is gone
// without a word, and free the lock; and keeps it from ending a session that is idle. What a
// server does not have it is not asked for.
func keepAlive(ctx context.Context, conn *pgx.Conn) error {
	return await.Run(ctx, conn, await.UntilAnswered, func(ctx context.Context) error {
		_, err := conn.Exec(ctx, keepAliveSQL)
		return err
	})
}
