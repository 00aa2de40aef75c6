package advisory_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/internal/conformance"
	"github.com/pglock/pglock-go/internal/pgtest"
)

// transactions are locks in transactions that end with the lock.
type transactions struct {
	pool      *pgxpool.Pool
	namespace string
}

func (l transactions) Lock(ctx context.Context, name string) (conformance.Unlock, error) {
	return l.lock(func(tx advisory.Tx, key advisory.Key) error { return advisory.Lock(ctx, tx, key) }, name)
}

func (l transactions) TryLock(ctx context.Context, name string) (conformance.Unlock, error) {
	return l.lock(func(tx advisory.Tx, key advisory.Key) error { return advisory.TryLock(ctx, tx, key) }, name)
}

func (l transactions) lock(how func(advisory.Tx, advisory.Key) error, name string) (conformance.Unlock, error) {
	tx, err := l.pool.Begin(context.Background())
	if err != nil {
		return nil, err
	}
	if err := how(tx, advisory.NewKey(l.namespace, name)); err != nil {
		return nil, errors.Join(err, tx.Rollback(context.Background()))
	}
	return tx.Commit, nil
}

// sessions are session locks, with a keep-alive timeout that a busy machine does not exceed.
type sessions struct {
	pool      *pgxpool.Pool
	namespace string
}

func (l sessions) Lock(ctx context.Context, name string) (conformance.Unlock, error) {
	return unlockOf(advisory.Acquire(ctx, l.pool, advisory.NewKey(l.namespace, name), advisory.WithKeepAliveTimeout(time.Minute)))
}

func (l sessions) TryLock(ctx context.Context, name string) (conformance.Unlock, error) {
	return unlockOf(advisory.TryAcquire(ctx, l.pool, advisory.NewKey(l.namespace, name), advisory.WithKeepAliveTimeout(time.Minute)))
}

func unlockOf(s *advisory.Session, err error) (conformance.Unlock, error) {
	if err != nil {
		return nil, err
	}
	return s.Release, nil
}

// TestConformance runs the suite that every kind of lock must pass.
func TestConformance(t *testing.T) {
	t.Parallel()
	crowd, odd := func(c *pgxpool.Config) { c.MaxConns = 40 }, pgtest.OddDatabase(t)
	for name, open := range map[string]func(t *testing.T) conformance.Locker{
		"transaction": func(t *testing.T) conformance.Locker {
			t.Helper()
			return transactions{pgtest.Pool(t, crowd), t.Name()}
		},
		"session": func(t *testing.T) conformance.Locker {
			t.Helper()
			return sessions{pgtest.Pool(t), t.Name()}
		},
		"session in an odd database": func(t *testing.T) conformance.Locker {
			t.Helper()
			return sessions{pgtest.PoolOn(t, odd), t.Name()}
		},
		"transaction in an odd database": func(t *testing.T) conformance.Locker {
			t.Helper()
			return transactions{pgtest.PoolOn(t, odd, crowd), t.Name()}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conformance.Run(t, func(t *testing.T) func() conformance.Locker {
				t.Helper()
				return func() conformance.Locker { return open(t) }
			})
		})
	}
}
