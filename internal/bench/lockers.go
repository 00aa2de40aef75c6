package main

import (
	"context"
	"errors"
	"time"

	"github.com/bsm/redislock"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/pglock/pglock-go/pglock"
)

// The kinds of locks that are compared.
const (
	kindOurs           = "pglock"
	kindRedis          = "redislock"
	kindRedisPipelined = "redislock, auto-pipelined"
	kindRedisFastest   = "SET NX and DELEX, auto-pipelined"
	kindEtcd           = "etcd mutex"
	kindEtcdBatched    = "etcd keys, batched"
	kindAdvisory       = "blocked pg_advisory_lock"
	kindSingle         = "one statement per lock"
	kindBare           = "bare UPDATEs, batched"
)

type (
	// lockFunc waits for the lock of that name, and returns the function that unlocks.
	lockFunc   func(ctx context.Context, name string) (unlock unlockFunc, err error)
	unlockFunc = func(ctx context.Context) error

	// locker is a kind of lock in one process.
	locker struct {
		lock  lockFunc
		close func()
	}
)

// pair locks and unlocks.
func (l locker) pair(ctx context.Context, name string) error {
	unlock, err := l.lock(ctx, name)
	if err != nil {
		return err
	}
	return unlock(ctx)
}

// openLocker opens a kind of lock on the server at address. conns bounds its connections if it has no
// default.
func openLocker(ctx context.Context, kind, address string, conns int) (locker, error) {
	switch kind {
	case kindRedis:
		return openRedis(address, conns), nil
	case kindRedisPipelined, kindRedisFastest:
		return openPipelined(ctx, address, kind)
	case kindEtcd:
		return openEtcd(ctx, address)
	case kindEtcdBatched:
		return openEtcdBatched(ctx, address)
	case kindOurs:
		conns = fewConns
	}
	pool, err := connect(ctx, address, conns)
	if err != nil {
		return locker{}, err
	}
	switch kind {
	case kindAdvisory:
		return openAdvisory(pool), nil
	case kindSingle:
		return openSingle(pool), nil
	case kindBare:
		return openBare(pool), nil
	case kindOnce:
		return openOnce(pool), nil
	}
	client, err := pglock.Open(ctx, pool)
	if err != nil {
		pool.Close()
		return locker{}, err
	}
	l := ours(client)
	l.close = func() { _ = closeClient(client); pool.Close() }
	return l, nil
}

// ours are the locks of a client, which the caller closes.
func ours(client *pglock.Client) locker {
	return locker{lock: func(ctx context.Context, name string) (unlockFunc, error) {
		l, err := client.Acquire(ctx, name)
		if err != nil {
			return nil, err
		}
		return l.Release, nil
	}}
}

func openRedis(address string, conns int) locker {
	client := redis.NewClient(&redis.Options{Addr: address, PoolSize: conns})
	return locker{lock: redislocks(client), close: func() { _ = client.Close() }}
}

func redislocks(client redislock.RedisClient) lockFunc {
	locks := redislock.New(client)
	retry := &redislock.Options{RetryStrategy: redislock.LinearBackoff(time.Millisecond)}
	return func(ctx context.Context, name string) (unlockFunc, error) {
		m, err := locks.Obtain(ctx, name, 30*time.Second, retry)
		if err != nil {
			return nil, err
		}
		return m.Release, nil
	}
}

func openEtcd(ctx context.Context, address string) (locker, error) {
	session, closeAll, err := openSession(ctx, address)
	return locker{
		lock: func(ctx context.Context, name string) (unlockFunc, error) {
			m := concurrency.NewMutex(session, "/"+name)
			return m.Unlock, m.Lock(ctx)
		},
		close: closeAll,
	}, err
}

// openSession opens a client of etcd with a session, which the caller closes together.
func openSession(ctx context.Context, address string) (_ *concurrency.Session, closeAll func(), err error) {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{address}, DialTimeout: peerPatience})
	if err != nil {
		return nil, nil, err
	}
	session, err := concurrency.NewSession(client, concurrency.WithTTL(30), concurrency.WithContext(context.WithoutCancel(ctx)))
	if err != nil {
		return nil, nil, errors.Join(err, client.Close())
	}
	return session, func() { _ = session.Close(); _ = client.Close() }, nil
}

// openAdvisory opens session locks of PostgreSQL, each on a connection of its own.
func openAdvisory(pool *pgxpool.Pool) locker {
	return locker{close: pool.Close, lock: func(ctx context.Context, name string) (unlockFunc, error) {
		conn, err := pool.Acquire(ctx)
		if err != nil {
			return nil, err
		}
		_, err = conn.Exec(ctx, "SELECT pg_advisory_lock(hashtextextended($1, 0))", name)
		return func(ctx context.Context) error {
			defer conn.Release()
			_, err := conn.Exec(ctx, "SELECT pg_advisory_unlock(hashtextextended($1, 0))", name)
			return err
		}, err
	}}
}

// createNaive creates a common form of a lock table, and naiveUpsert acquires in it: it locks the row to
// find out that it must not change it, and that lock is a write.
const (
	createNaive = "CREATE TABLE naive_locks (name text PRIMARY KEY, holder text NOT NULL, expires_at timestamptz NOT NULL) WITH (fillfactor = 50)"
	naiveUpsert = `
		INSERT INTO naive_locks AS l (name, holder, expires_at)
		VALUES ($1, $2, clock_timestamp() + interval '30 seconds')
		ON CONFLICT (name) DO UPDATE SET holder = EXCLUDED.holder, expires_at = EXCLUDED.expires_at
		WHERE l.expires_at < clock_timestamp()`
)

// openSingle opens such a table, with a statement for each acquire and each release.
func openSingle(pool *pgxpool.Pool) locker {
	return locker{close: pool.Close, lock: func(ctx context.Context, name string) (unlockFunc, error) {
		tag, err := pool.Exec(ctx, naiveUpsert, name, "me")
		if err == nil && tag.RowsAffected() == 0 {
			err = pgx.ErrNoRows // nobody else wants it
		}
		return func(ctx context.Context) error {
			_, err := pool.Exec(ctx, "UPDATE naive_locks SET expires_at = '-infinity' WHERE name = $1", name)
			return err
		}, err
	}}
}
