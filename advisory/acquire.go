package advisory

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

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
// Acquire polls with pauses of up to 375 ms and uses a connection only for an attempt. Of the
// goroutines that want the same key exclusively from the same pool, one polls and the others wait
// behind it, first come, first served. No waiter holds a snapshot, and none holds a connection,
// with one exception: if readers (WithShared) and writers compete, the waiter that is next keeps
// a connection, which is removed from the pool, and is granted the lock after its present
// holders. See the package documentation.
//
// Two sessions of one process exclude each other like those of two processes. The holder of a
// shared lock must not acquire it again: with a writer that waits in between, neither continues.
func Acquire(ctx context.Context, pool *pgxpool.Pool, key Key, opts ...SessionOption) (*Session, error) {
	a, err := newAcquisition(ctx, pool, key, opts, true)
	if err != nil {
		return nil, err
	}
	return a.wait(ctx)
}

// TryAcquire makes one attempt. If another session holds the lock or is next for it, the error is a
// *NotAcquiredError (errors.Is ErrNotAcquired) without a cause. A shared try therefore fails beside
// readers while a writer waits, like sync.RWMutex's TryRLock. A try delays no waiter, because it
// never becomes next. ctx bounds the attempt. Otherwise TryAcquire is like Acquire.
func TryAcquire(ctx context.Context, pool *pgxpool.Pool, key Key, opts ...SessionOption) (*Session, error) {
	a, err := newAcquisition(ctx, pool, key, opts, false)
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
	cfg   sessionConfig
	pool  *pgxpool.Pool
	waits bool // it may become next
}

func newAcquisition(ctx context.Context, pool *pgxpool.Pool, key Key, opts []SessionOption, waits bool) (*acquisition, error) {
	cfg := sessionConfig{poolWait: defaultPoolWait, keepAlive: defaultKeepAlive}
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
		return nil, c.notAcquired(errs.ContextErr(ctx))
	}
	return &acquisition{call: c, cfg: cfg, pool: pool, waits: waits}, nil
}

// sessionGates admit one exclusive call of Acquire for each key. A holder stays behind the gate
// until it has released, so that the others need not poll meanwhile.
var sessionGates gates

// wait repeats the attempt until the lock is granted.
func (a *acquisition) wait(ctx context.Context) (s *Session, err error) {
	leave := func() {}
	if !a.shared {
		if leave, err = a.enter(ctx, &sessionGates, a.pool, 1); err != nil {
			return nil, err
		}
	}
	err = a.poll(ctx, pollPauses(), func() (err error) {
		s, err = a.attempt(ctx, leave)
		return err
	})
	if err != nil {
		leave()
	}
	return s, err
}

// attempt tries the lock once. It returns errBusy, and returns the connection to the pool, if
// another session holds the lock. A connection that may hold the lock unnoticed is closed.
func (a *acquisition) attempt(ctx context.Context, leave func()) (*Session, error) {
	conn, err := a.connFrom(ctx, a.pool, a.cfg.poolWait)
	if err != nil {
		return nil, err
	}
	pid, err := directBackendPID(ctx, conn.Conn())
	if err != nil {
		conn.Release() // it holds nothing
		return nil, a.explain(ctx, err)
	}
	outcome, err := a.pass(ctx, conn.Conn())
	if err == nil && outcome != granted && outcome != next {
		conn.Release()
		return nil, errBusy
	}
	session := conn.Hijack()
	if err == nil && outcome == next {
		err = a.waitNext(ctx, session)
	}
	if err == nil && ctx.Err() == nil {
		return newSession(ctx, a.call, session, pid, a.cfg.keepAlive, leave), nil
	}
	return nil, a.giveUp(ctx, session, err)
}

// giveUp closes the connection and returns why the lock was not granted. It unlocks the
// connection's keys first: the server notices the end of a connection a moment later, and until
// then the caller's next attempt would find the turnstile closed.
func (a *acquisition) giveUp(ctx context.Context, session *pgx.Conn, err error) error {
	var refused *NotAcquiredError
	switch {
	case errors.Is(err, errBusy), errors.As(err, &refused):
	case err == nil:
		err = a.notAcquired(errs.ContextErr(ctx))
	default:
		err = a.explain(ctx, err)
	}
	if !session.IsClosed() {
		// If it fails, the end of the connection unlocks.
		_ = pgtx.CleanUp(ctx, func(ctx context.Context) error {
			_, err := session.Exec(ctx, unlockAll)
			return err
		})
	}
	return errs.Join(err, pgtx.CleanUp(ctx, session.Close))
}

const unlockAll = "SELECT pg_advisory_unlock_all()"

// Outcomes of pass.sql. With any other outcome the session holds nothing.
const (
	granted = "granted" // the session holds the lock
	next    = "next"    // the session holds the turnstile
)

// pass passes the turnstile, tries the lock and returns the outcome. It first unlocks keys that
// an earlier user of the pooled connection left locked: the server grants a session again what the
// session holds already.
func (a *acquisition) pass(ctx context.Context, conn *pgx.Conn) (outcome string, err error) {
	err = pgtx.Run(ctx, conn, pgtx.LetFinish, func(ctx context.Context) error {
		batch := &pgx.Batch{}
		batch.Queue(unlockAll)
		q := a.keys[0].withTurnstile(passSQL, a.shared, a.waits)
		batch.Queue(q.SQL, q.Args...).QueryRow(func(row pgx.Row) error { return row.Scan(&outcome, nil, nil) })
		return conn.SendBatch(ctx, batch).Close()
	})
	return outcome, err
}

// waitNext tries the lock on the connection that holds the turnstile until the lock is granted.
// Meanwhile the server lets no other session pass. If the connection is lost, and the turnstile
// with it, waitNext returns errBusy: then the caller polls like all others.
func (a *acquisition) waitNext(ctx context.Context, conn *pgx.Conn) error {
	err := a.poll(ctx, nextPauses(), func() error {
		got, err := a.enterTurnstile(ctx, conn)
		if err == nil && !got {
			return errBusy
		}
		return err
	})
	if err != nil && conn.IsClosed() && ctx.Err() == nil {
		return errBusy
	}
	return err
}

// enterTurnstile tries the lock once. If it is granted, the turnstile is open again.
func (a *acquisition) enterTurnstile(ctx context.Context, conn *pgx.Conn) (got bool, err error) {
	q := a.keys[0].withTurnstile(enterSQL, a.shared)
	err = pgtx.Run(ctx, conn, pgtx.LetFinish, func(ctx context.Context) error {
		return conn.QueryRow(ctx, q.SQL, q.Args...).Scan(&got, nil, nil)
	})
	return got, err
}
