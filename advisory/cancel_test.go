package advisory_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/internal/pgtest"
)

// TestI9_P26_CancelAnywhere ends the context of every function after each of many delays, with the
// lock free and with the lock held. The network is so slow that the delays hit every step.
// Afterwards nothing is locked, all connections are back in the pool, and the caller's transaction
// is usable.
func TestI9_P26_CancelAnywhere(t *testing.T) {
	t.Parallel()
	const delay, steps = 4 * time.Millisecond, 14
	direct := pgtest.Pool(t)
	proxy, pool := proxied(t, func(c *pgxpool.Config) { c.MaxConns = 3 })
	proxy.Delay(delay)
	key, other := advisory.NewKey("cancel", t.Name()), advisory.NewKey("cancel too", t.Name())

	inTx := func(call func(ctx context.Context, tx pgx.Tx) error) func(context.Context) error {
		return func(ctx context.Context) error {
			tx := begin(t, pool)
			err := call(ctx, tx)
			if tx.Conn().IsClosed() {
				t.Errorf("the connection was closed: %v", err)
			}
			usable(t, tx)
			if n := held(t, tx); (n > 0) != (err == nil) {
				t.Errorf("%d locks are held, the error is %v", n, err)
			}
			return errors.Join(err, tx.Rollback(t.Context()))
		}
	}
	release := func(s *advisory.Session, err error) error {
		if err != nil {
			return err
		}
		return s.Release(t.Context())
	}
	for name, call := range map[string]func(ctx context.Context) error{
		"Lock":       inTx(func(ctx context.Context, tx pgx.Tx) error { return advisory.Lock(ctx, tx, key) }),
		"LockShared": inTx(func(ctx context.Context, tx pgx.Tx) error { return advisory.LockShared(ctx, tx, key) }),
		"LockAll": inTx(func(ctx context.Context, tx pgx.Tx) error {
			return advisory.LockAll(ctx, tx, []advisory.Key{other, key})
		}),
		"TryLock": inTx(func(ctx context.Context, tx pgx.Tx) error { return advisory.TryLock(ctx, tx, key) }),
		"Do":      func(ctx context.Context) error { return advisory.Do(ctx, pool, key, noWork) },
		"Do, serializable": func(ctx context.Context) error {
			return advisory.Do(ctx, pool, key, noWork, advisory.WithIsolation(pgx.Serializable), advisory.WithKeys(other))
		},
		"Acquire":    func(ctx context.Context) error { return release(advisory.Acquire(ctx, pool, key)) },
		"TryAcquire": func(ctx context.Context) error { return release(advisory.TryAcquire(ctx, pool, key)) },
	} {
		for _, busy := range []bool{false, true} {
			var before pgx.Tx
			if busy {
				before = holder(t, direct, key)
			}
			for step := range steps {
				ctx, cancel := context.WithTimeoutCause(t.Context(), time.Duration(step)*delay/2, errors.New("enough"))
				if step%2 == 1 { // by cancel instead of a deadline
					cancel()
					ctx, cancel = context.WithCancel(t.Context())
					time.AfterFunc(time.Duration(step)*delay/2, cancel)
				}
				switch err := call(ctx); {
				case err == nil && busy:
					t.Errorf("%s: granted beside the holder", name)
				case err != nil && ctx.Err() == nil && (!errors.Is(err, advisory.ErrNotAcquired) || !busy) && !errors.Is(err, context.DeadlineExceeded):
					t.Errorf("%s, before the context ended: %v", name, err)
				case err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, advisory.ErrNotAcquired):
					t.Errorf("%s: %v", name, err)
				}
				cancel()
			}
			if busy {
				ok(t, before.Rollback(t.Context()))
			}
			for _, k := range []advisory.Key{key, other} {
				pgtest.Eventually(t, name+": nothing is locked", func() bool { return locksOn(t, direct, k) == 0 })
			}
			whole(t, pool)
		}
	}
	if n := advisory.Admitted(pool); n != 0 {
		t.Errorf("%d keys have callers that are still admitted", n)
	}
}

// TestI9_CancelWithoutAnswer: if the server does not react to the request to cancel, the call
// returns all the same, and the connection is closed.
func TestI9_CancelWithoutAnswer(t *testing.T) {
	t.Parallel()
	direct := pgtest.Pool(t)
	proxy, pool := proxied(t)
	key := advisory.NewKey("cancel", t.Name())
	before := holder(t, direct, key)
	tx := begin(t, pool)
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() { result <- advisory.Lock(ctx, tx, key) }()
	pgtest.Eventually(t, "the call waits", func() bool { return waitsFor(t, direct, key) == 1 })
	proxy.Cut()
	cancel()
	begun := time.Now()
	if err := <-result; !isAll(err, advisory.ErrNotAcquired, context.Canceled) || time.Since(begun) > 15*time.Second {
		t.Errorf("after %v: %v", time.Since(begun), err)
	}
	proxy.Heal()
	proxy.Sever()
	// The server notices that its client is gone when it sends the grant.
	ok(t, before.Rollback(t.Context()))
	pgtest.Eventually(t, "the server has released the lock", func() bool { return locksOn(t, direct, key) == 0 })
}
