package limits

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/migrations"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/leader"
	"github.com/pglock/pglock-go/pglock/once"
)

// acquireOf acquires a lock of one kind.
type acquireOf func(ctx context.Context, c *pglock.Client) (*pglock.Lease, error)

// exclusive has the kinds of locks that a second caller waits for.
var exclusive = map[string]acquireOf{
	"lease": func(ctx context.Context, c *pglock.Client) (*pglock.Lease, error) { return c.Acquire(ctx, "lease") },
	"semaphore": func(ctx context.Context, c *pglock.Client) (*pglock.Lease, error) {
		return c.Semaphore("semaphore", 3).Weight(2).Acquire(ctx)
	},
	"writer": func(ctx context.Context, c *pglock.Client) (*pglock.Lease, error) {
		return c.Writer("rw").Acquire(ctx)
	},
	"several names": func(ctx context.Context, c *pglock.Client) (*pglock.Lease, error) {
		return locktest.All(c, "left", "right").Acquire(ctx)
	},
	"election": func(ctx context.Context, c *pglock.Client) (*pglock.Lease, error) {
		e, err := leader.New(c, "election")
		if err != nil {
			return nil, err
		}
		term, err := e.Campaign(ctx, "payload")
		if err != nil {
			return nil, err
		}
		return term.Lease(), nil
	},
}

// poolOfOne returns a pool with one connection, on a database with the tables.
func poolOfOne(t *testing.T) *pgxpool.Pool {
	t.Helper()
	pool := pgtest.PoolOn(t, pgtest.Database(t), func(c *pgxpool.Config) { c.MaxConns = 1 })
	if err := migrations.Up(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	return pool
}

// TestP15_ABusyPoolOfOneStopsNoLock: the pool's only connection is in a transaction, while locks of
// every kind are acquired, waited for, renewed, guarded in that transaction and released, and while
// the clients close. The control is DoTx, which needs a connection of the pool.
func TestP15_ABusyPoolOfOneStopsNoLock(t *testing.T) {
	t.Parallel()
	pool := poolOfOne(t)
	begin := func() pgx.Tx {
		tx, err := pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return tx
	}
	tx := begin()
	defer func() { _ = tx.Rollback(context.Background()) }()
	open := func() *pglock.Client {
		c, err := pglock.Open(t.Context(), pool, pglock.WithRenewEvery(time.Second))
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	ours, theirs := open(), open()
	leases := map[string]*pglock.Lease{}
	waiters := make(chan error, len(exclusive)) // their leases are held until theirs closes
	for kind, acquire := range exclusive {
		l, err := acquire(t.Context(), ours)
		if err != nil {
			t.Fatalf("%s: %v", kind, err)
		}
		leases[kind] = l
		go func() {
			_, err := acquire(t.Context(), theirs)
			waiters <- err
		}()
	}
	for kind, l := range leases {
		granted := l.Deadline()
		pgtest.Eventually(t, kind+": a waiter, and a renewal", func() bool {
			info, err := ours.Get(t.Context(), l.Names()[0])
			return err == nil && len(info.Waiters) == 1 && l.Deadline().After(granted)
		})
		if err := l.Guard(t.Context(), tx); err != nil {
			t.Errorf("%s: guard: %v", kind, err)
		}
	}
	if err := tx.Commit(t.Context()); err != nil { // ends the guards
		t.Fatal(err)
	}
	tx = begin()
	for kind, l := range leases {
		if err := l.Release(t.Context()); err != nil {
			t.Errorf("%s: release: %v", kind, err)
		}
	}
	for range leases {
		if err := locktest.Receive(t, waiters); err != nil {
			t.Errorf("a waiter: %v", err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := ours.DoTx(ctx, "n", func(context.Context, pgx.Tx) error { return nil }); !errors.Is(err, pglock.ErrNotAcquired) {
		t.Errorf("control: the pool has a connection: %v", err)
	}
	for _, c := range []*pglock.Client{ours, theirs} {
		if err := c.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if n := pool.Stat().AcquiredConns(); n != 1 {
		t.Errorf("%d connections of the pool are in use", n)
	}
}

// TestWorkHasThePoolOfOne: functions that run under a lock get the pool's only connection.
func TestWorkHasThePoolOfOne(t *testing.T) {
	t.Parallel()
	pool := poolOfOne(t)
	c := locktest.ClientOn(t, pool)
	ctx, cancel := context.WithTimeout(t.Context(), pgtest.Patience)
	defer cancel()
	write := func(ctx context.Context, l *pglock.Lease) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return l.Guard(ctx, tx) })
	}
	for what, work := range map[string]func() error{
		"Do":                func() error { return c.Do(ctx, "do", write) },
		"Do, several names": func() error { return locktest.All(c, "a", "b").Do(ctx, write) },
		"once.Do": func() error {
			_, err := once.Do(ctx, c, "key", nil, func(ctx context.Context, l *pglock.Lease) (string, error) { return "done", write(ctx, l) })
			return err
		},
		"DoTx": func() error {
			return c.DoTx(ctx, "tx", func(ctx context.Context, tx pgx.Tx) error { // which has the connection
				return c.Do(ctx, "inner", func(ctx context.Context, l *pglock.Lease) error { return l.Guard(ctx, tx) })
			})
		},
	} {
		if err := work(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	if n := pool.Stat().AcquiredConns(); n != 0 {
		t.Errorf("%d connections of the pool are in use", n)
	}
}
