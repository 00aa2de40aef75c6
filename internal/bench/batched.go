package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pglock/pglock-go/internal/bench/trial"
)

// The limits of batches are those of our client: the calls of one, and how many are in flight, because a
// client keeps one of its connections for renewals.
const (
	maxBatch = 128
	inFlight = fewConns - 1
)

// errRefused means that a free lock was not granted, or that a held one was not released, so the
// measurement is void.
var errRefused = errors.New("bench: a free lock was not granted, or a held one not released")

// call is an acquire or a release that waits until its batch has been sent.
type call struct {
	name  string
	grant int64 // its number, if the kind of lock has one
	done  chan error
}

// sendFunc sends a batch, whose calls are for different names. It returns errRefused unless the server has
// confirmed every one of them, because locks that gather are compared only where all names are free.
type sendFunc func(ctx context.Context, batch []*call) error

// openBatched opens locks whose calls gather as those of our client do: while all workers are busy, further
// calls of the same kind share the next batch. There is no timer.
func openBatched(acquire, release sendFunc, closeAll func()) locker {
	ctx, cancel := context.WithCancel(context.Background())
	acquires, releases := make(chan *call, distinctCrowd), make(chan *call, distinctCrowd)
	var running sync.WaitGroup
	for range inFlight {
		running.Go(func() {
			for {
				// If both queues have calls, either is as good: no call waits for one of the other queue.
				select {
				case c := <-acquires:
					sendWith(ctx, acquire, c, acquires)
				case c := <-releases:
					sendWith(ctx, release, c, releases)
				case <-ctx.Done():
					return
				}
			}
		})
	}
	submit := func(queue chan<- *call, c *call) error { queue <- c; return <-c.done }
	return locker{
		lock: func(_ context.Context, name string) (unlockFunc, error) {
			c := &call{name: name, done: make(chan error, 1)}
			err := submit(acquires, c)
			return func(context.Context) error { return submit(releases, c) }, err
		},
		close: func() { cancel(); running.Wait(); closeAll() },
	}
}

// sendWith sends a call together with those that wait in its queue.
func sendWith(ctx context.Context, send sendFunc, first *call, queue <-chan *call) {
	batch := []*call{first}
	for more := true; more && len(batch) < maxBatch; {
		select { // another worker may have emptied the queue since
		case c := <-queue:
			batch = append(batch, c)
		default:
			more = false
		}
	}
	err := send(ctx, batch)
	for _, c := range batch {
		c.done <- err
	}
}

// createBare creates the smallest table that a lock could have, with the settings of ours, and a row for
// each name.
var createBare = []string{
	`CREATE TABLE bare_locks (name text PRIMARY KEY, n bigint NOT NULL) WITH (fillfactor = 50,
		autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0)`,
	fmt.Sprintf("INSERT INTO bare_locks SELECT 'name-' || i, 0 FROM generate_series(0, %d) AS i", distinctCrowd-1),
	"VACUUM ANALYZE bare_locks",
}

// openBare opens what a batch of acquires and one of releases cost at least: a durable UPDATE of its rows,
// and one whose commit is not awaited.
func openBare(pool *pgxpool.Pool) locker {
	update := func(statement string) sendFunc {
		return func(ctx context.Context, batch []*call) error {
			names := make([]string, len(batch))
			for i, c := range batch {
				names[i] = c.name
			}
			tag, err := pool.Exec(ctx, statement, names)
			if err == nil && tag.RowsAffected() != int64(len(batch)) {
				return errRefused
			}
			return err
		}
	}
	return openBatched(
		update("UPDATE bare_locks AS l SET n = n + 1 FROM unnest($1::text[]) AS a (name) WHERE l.name = a.name"),
		update(`WITH async AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true))
			UPDATE bare_locks AS l SET n = n + 1 FROM async, unnest($1::text[]) AS a (name) WHERE l.name = a.name`),
		pool.Close)
}

// openEtcdBatched opens keys of a session. A batch is one transaction, in which each call is a nested one
// that compares the revision at which its key was created: zero to acquire it, and that of its grant to
// release it.
func openEtcdBatched(ctx context.Context, address string) (locker, error) {
	session, closeAll, err := openSession(ctx, address)
	if err != nil {
		return locker{}, err
	}
	transaction := func(then func(c *call) clientv3.Op) sendFunc {
		return func(ctx context.Context, batch []*call) error {
			all := make([]clientv3.Op, len(batch))
			for i, c := range batch {
				unchanged := clientv3.Compare(clientv3.CreateRevision(c.name), "=", c.grant)
				all[i] = clientv3.OpTxn([]clientv3.Cmp{unchanged}, []clientv3.Op{then(c)}, nil)
			}
			response, err := session.Client().Txn(ctx).Then(all...).Commit()
			if err != nil {
				return err
			}
			for i, c := range batch {
				if !response.Responses[i].GetResponseTxn().Succeeded {
					return errRefused
				}
				c.grant = response.Header.Revision
			}
			return nil
		}
	}
	return openBatched(
		transaction(func(c *call) clientv3.Op { return clientv3.OpPut(c.name, "", clientv3.WithLease(session.Lease())) }),
		transaction(func(c *call) clientv3.Op { return clientv3.OpDelete(c.name) }),
		closeAll), nil
}

// openPipelined opens locks whose commands go-redis gathers in pipelines while it waits for the answers to
// the last one (AutoPipeline): those of redislock, or the two cheapest commands that can replace its
// scripts. Redis has the second one, a DELETE that compares the value, since 8.4.
func openPipelined(ctx context.Context, address, kind string) (locker, error) {
	client := redis.NewClient(&redis.Options{Addr: address})
	pipeline, err := client.AutoPipeline()
	l := locker{close: func() { _ = client.Close() }}
	switch {
	case err != nil:
		l.close()
		return l, err
	case kind == kindRedisPipelined:
		l.lock = redislocks(pipeline)
		return l, nil
	}
	release := func(ctx context.Context, name, token string) error {
		removed, err := pipeline.DelExArgs(ctx, name, redis.DelExArgs{Mode: "IFEQ", MatchValue: token}).Result()
		if err == nil && removed != 1 {
			err = errRefused
		}
		return err
	}
	if err := release(ctx, "no such name", ""); !errors.Is(err, errRefused) {
		l.close()
		return l, fmt.Errorf("%w: no DELEX in this Redis: testdata/bench/peers.sh: %w", trial.ErrMissing, err)
	}
	l.lock = func(ctx context.Context, name string) (unlockFunc, error) {
		token := rand.Text()
		granted, err := pipeline.SetNX(ctx, name, token, 30*time.Second).Result()
		if err == nil && !granted {
			err = errRefused
		}
		return func(ctx context.Context) error { return release(ctx, name, token) }, err
	}
	return l, nil
}
