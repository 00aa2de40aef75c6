package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3/lock"
	"github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/pglock/pglock-go/pglock"
)

// The kinds of locks that are compared.
const (
	kindOurs    = "pglock"
	kindPolling = "pglock, poll only"
	kindRedis   = "redislock"

	kindDurableRedis = "redislock, fsync always"

	kindRedsync  = "redsync"
	kindEtcd     = "etcd mutex"
	kindAdvisory = "blocked pg_advisory_lock"
	kindGoose    = "goose session locker"
	kindNaive    = "naive upsert, polling"
	kindSingle   = "one statement per lock"
)

// locker is a kind of lock in one process: lock waits, and returns the function that unlocks.
type locker struct {
	lock  func(ctx context.Context, name string) (unlock func(ctx context.Context) error, err error)
	close func()
}

// openLocker opens a kind of lock on the server at address. conns bounds its connections if it has no
// default.
func openLocker(ctx context.Context, kind, address string, conns int) (locker, error) {
	switch kind {
	case kindOurs, kindPolling:
		return openOurs(ctx, kind, address)
	case kindRedis, kindDurableRedis, kindRedsync:
		return openRedis(kind, address, conns), nil
	case kindEtcd:
		return openEtcd(ctx, address)
	case kindGoose:
		return openGoose(ctx, address)
	case kindAdvisory, kindNaive, kindSingle:
		return openSQL(ctx, kind, address, conns)
	}
	return locker{}, fmt.Errorf("bench: no kind %q", kind)
}

func openOurs(ctx context.Context, kind, address string) (locker, error) {
	pool, err := pgxpool.New(ctx, address)
	if err != nil {
		return locker{}, err
	}
	var opts []pglock.Option
	if kind == kindPolling {
		opts = append(opts, pglock.WithPollOnly())
	}
	client, err := pglock.Open(ctx, pool, opts...)
	if err != nil {
		pool.Close()
		return locker{}, err
	}
	return locker{
		lock: func(ctx context.Context, name string) (func(context.Context) error, error) {
			l, err := client.Acquire(ctx, name)
			if err != nil {
				return nil, err
			}
			return l.Release, nil
		},
		close: func() {
			ctx, cancel := context.WithTimeout(context.Background(), closeBound)
			defer cancel()
			_ = client.Close(ctx)
			pool.Close()
		},
	}, nil
}

func openRedis(kind, address string, conns int) locker {
	client := redis.NewClient(&redis.Options{Addr: address, PoolSize: conns})
	l := locker{close: func() { _ = client.Close() }}
	if kind == kindRedsync {
		all := redsync.New(goredis.NewPool(client))
		l.lock = func(ctx context.Context, name string) (func(context.Context) error, error) {
			m := all.NewMutex(name, redsync.WithExpiry(30*time.Second), redsync.WithTries(1<<30),
				redsync.WithRetryDelayFunc(func(int) time.Duration { return time.Millisecond }))
			unlock := func(ctx context.Context) error { _, err := m.UnlockContext(ctx); return err }
			return unlock, m.LockContext(ctx)
		}
		return l
	}
	locks := redislock.New(client)
	retry := &redislock.Options{RetryStrategy: redislock.LinearBackoff(time.Millisecond)}
	l.lock = func(ctx context.Context, name string) (func(context.Context) error, error) {
		m, err := locks.Obtain(ctx, name, 30*time.Second, retry)
		if err != nil {
			return nil, err
		}
		return m.Release, nil
	}
	return l
}

func openEtcd(ctx context.Context, address string) (locker, error) {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{address}, DialTimeout: peerPatience})
	if err != nil {
		return locker{}, err
	}
	session, err := concurrency.NewSession(client, concurrency.WithTTL(30), concurrency.WithContext(context.WithoutCancel(ctx)))
	if err != nil {
		return locker{}, errors.Join(err, client.Close())
	}
	return locker{
		lock: func(ctx context.Context, name string) (func(context.Context) error, error) {
			m := concurrency.NewMutex(session, "/"+name)
			return m.Unlock, m.Lock(ctx)
		},
		close: func() { _ = session.Close(); _ = client.Close() },
	}, nil
}

// openGoose pins a connection per lock, as goose does for a migration. Its locker polls once a second
// at the fastest.
func openGoose(ctx context.Context, address string) (locker, error) {
	pool, err := pgxpool.New(ctx, address)
	if err != nil {
		return locker{}, err
	}
	db := stdlib.OpenDBFromPool(pool)
	session, err := lock.NewPostgresSessionLocker(lock.WithLockTimeout(1, 1<<20))
	if err != nil {
		return locker{}, err
	}
	return locker{
		lock: func(ctx context.Context, _ string) (func(context.Context) error, error) {
			conn, err := db.Conn(ctx)
			if err != nil {
				return nil, err
			}
			unlock := func(ctx context.Context) error {
				return errors.Join(session.SessionUnlock(ctx, conn), conn.Close())
			}
			return unlock, session.SessionLock(ctx, conn)
		},
		close: func() { _ = db.Close(); pool.Close() },
	}, nil
}

// openSQL opens the kinds that users write themselves.
func openSQL(ctx context.Context, kind, address string, conns int) (locker, error) {
	config, err := pgxpool.ParseConfig(address)
	if err != nil {
		return locker{}, err
	}
	config.MaxConns = int32(conns)
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return locker{}, err
	}
	l := locker{close: pool.Close}
	if kind == kindAdvisory {
		l.lock = func(ctx context.Context, name string) (func(context.Context) error, error) {
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
		}
		return l, nil
	}
	l.lock = func(ctx context.Context, name string) (func(context.Context) error, error) {
		for {
			var got string
			err := pool.QueryRow(ctx, `INSERT INTO naive_locks AS l (name, holder, expires_at) VALUES ($1, 'me', clock_timestamp() + interval '30 s')
				ON CONFLICT (name) DO UPDATE SET holder = 'me', expires_at = clock_timestamp() + interval '30 s'
				WHERE l.expires_at <= clock_timestamp() RETURNING name`, name).Scan(&got)
			if err == nil {
				break
			}
			if !errors.Is(err, pgx.ErrNoRows) {
				return nil, err
			}
			select {
			case <-time.After(time.Millisecond):
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		return func(ctx context.Context) error {
			_, err := pool.Exec(ctx, "UPDATE naive_locks SET expires_at = '-infinity' WHERE name = $1", name)
			return err
		}, nil
	}
	return l, nil
}

const createNaive = "CREATE TABLE naive_locks (name text PRIMARY KEY, holder text NOT NULL, expires_at timestamptz NOT NULL) WITH (fillfactor = 50)"
