package pglocktest_test

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/pglocktest"
)

func acquire(t *testing.T, l pglock.Lock) *pglock.Lease {
	t.Helper()
	lease, err := l.Acquire(t.Context())
	locktest.OK(t, err)
	t.Cleanup(func() { _ = lease.Release(context.Background()) }) // some tests have lost it
	return lease
}

// TestGuardTakesATransaction of the same locks, and no other argument.
func TestGuardTakesATransaction(t *testing.T) {
	t.Parallel()
	for what, k := range map[string]*pglocktest.Locks{"fake": places["fake"](t), "server": places["server"](t)} {
		l := acquire(t, k.Lock("n"))
		for call, guard := range map[string]func(ctx context.Context, tx fencing.Tx) error{"Guard": l.Guard, "Bind": l.Bind} {
			locktest.OK(t, pgx.BeginFunc(t.Context(), k, func(tx pgx.Tx) error { return guard(t.Context(), tx) }))
			if err := guard(t.Context(), nil); !errors.Is(err, fencing.ErrNoTransaction) {
				t.Errorf("%s: %s without a transaction: %v", what, call, err)
			}
			for other, begin := range map[string]func(ctx context.Context) (pgx.Tx, error){
				"another fake": pglocktest.Fake(t).Begin, "a database": pgtest.PoolOn(t, pgtest.Database(t)).Begin,
			} {
				tx, err := begin(t.Context())
				locktest.OK(t, err)
				if err := guard(t.Context(), tx); err == nil {
					t.Errorf("%s: %s takes a transaction of %s", what, call, other)
				}
				locktest.OK(t, tx.Rollback(t.Context()))
			}
			tx, err := k.Begin(t.Context())
			locktest.OK(t, err)
			locktest.OK(t, tx.Rollback(t.Context()))
			if err := guard(t.Context(), tx); !errors.Is(err, fencing.ErrNoTransaction) {
				t.Errorf("%s: %s in a transaction that has ended: %v", what, call, err)
			}
		}
	}
}

// TestCommitAfterTheGrant: the writes of a guarded transaction don't count if its grant has ended
// before the commit. On a server the takeover waits for the transaction instead.
func TestCommitAfterTheGrant(t *testing.T) {
	t.Parallel()
	for call, guard := range map[string]func(l *pglock.Lease, ctx context.Context, tx fencing.Tx) error{"Guard": (*pglock.Lease).Guard, "Bind": (*pglock.Lease).Bind} {
		k := pglocktest.Fake(t)
		c := k.Client
		b := newBank(k)
		l := acquire(t, c.All(c.Lock("one"), c.Lock("two")))
		pay := func(between func()) error {
			return b.InTx(t.Context(), func(tx fencing.Tx) error {
				locktest.OK(t, guard(l, t.Context(), tx))
				locktest.OK(t, b.Add(tx, "a", 5))
				between()
				return nil
			})
		}
		locktest.OK(t, pay(func() {}))
		err := pay(func() {
			k.Expire("two")
			k.Busy("two", "another replica")
		})
		if !errors.Is(err, fencing.ErrStale) || b.of("a") != 5 {
			t.Errorf("%s: %v, %d cents", call, err, b.of("a"))
		}
	}
}

// TestTransactionsOfAFake end as those of a server do.
func TestTransactionsOfAFake(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, k *pglocktest.Locks) {
		t.Helper()
		c, ctx := k.Client, t.Context()
		in := func(fn func(tx pgx.Tx) error) error { return pgx.BeginFunc(ctx, k, fn) }
		advance := func(tx fencing.Tx, to fencing.Token) error {
			return fencing.Advance(ctx, tx, "file", to, fencing.WithSchema(k.Schema()))
		}
		late, old := acquire(t, c.Lock("late")), acquire(t, c.All(c.Lock("a"), c.Lock("b")))
		k.Pause(late)
		locktest.OK(t, in(func(tx pgx.Tx) error { return old.Guard(ctx, tx) }))
		k.Expire("b")
		next := acquire(t, k.Open(calm).Lock("b"))
		var stale *fencing.StaleError
		if err := in(func(tx pgx.Tx) error { return old.Guard(ctx, tx) }); !errors.As(err, &stale) || stale.Resource != "b" || stale.Current != next.Token() {
			t.Errorf("one name of two is lost: %v", err)
		}
		locktest.OK(t, in(func(tx pgx.Tx) error { // a guard that fails leaves the transaction as it is
			if err := late.Guard(ctx, tx); !errors.Is(err, fencing.ErrStale) {
				t.Errorf("a late guard: %v", err)
			}
			return nil
		}))
		err := in(func(tx pgx.Tx) error { // and a bind aborts it
			if err := late.Bind(ctx, tx); !errors.Is(err, fencing.ErrStale) {
				t.Errorf("a late bind: %v", err)
			}
			if err := next.Guard(ctx, tx); err == nil {
				t.Error("a statement in an aborted transaction")
			}
			return nil
		})
		if !errors.Is(err, pgx.ErrTxCommitRollback) {
			t.Errorf("the commit of an aborted transaction: %v", err)
		}
		locktest.OK(t, in(func(tx pgx.Tx) error { return advance(tx, 5) }))
		failed := errors.New("failed")
		if err := in(func(tx pgx.Tx) error { return errors.Join(advance(tx, 7), failed) }); !errors.Is(err, failed) {
			t.Errorf("%v", err)
		}
		if err := in(func(tx pgx.Tx) error { return advance(tx, 4) }); !errors.As(err, &stale) || stale.Current != 5 {
			t.Errorf("an older mark, after one that was rolled back: %v", err)
		}
		locktest.OK(t, in(func(tx pgx.Tx) error { return errors.Join(advance(tx, 5), advance(tx, 6)) }))
	})
}
