//go:build !base

package main

import (
	"context"
	"fmt"
	"sync/atomic"

	"golang.org/x/sync/semaphore"

	"github.com/pglock/pglock-go/internal/bench/trial"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/leader"
	"github.com/pglock/pglock-go/pglock/observe"
)

// createPermits makes the names of pairNames known as those of a semaphore and of a readers-writer lock.
var createPermits = []string{knownWithPermits("semaphore ", 3), knownWithPermits("rw ", 1<<30)}

func knownWithPermits(prefix string, capacity int) string {
	return fmt.Sprintf(`INSERT INTO pglock.distributed_locks (name, token, version, acquired_at, expires_at, capacity, in_use)
		SELECT '%s' || name, token, version, acquired_at, expires_at, %d, 0 FROM pglock.distributed_locks WHERE capacity IS NULL`, prefix, capacity)
}

// permitsRow is B13: the cost of a pair on each kind of lock beside that of a lease, of a semaphore in the
// process, and of an advisory lock that nothing waits for and that is not durable.
func permitsRow() trial.Row {
	r := &lab{}
	kind := func(name string, lock func(client *pglock.Client, name string) pglock.Lock) trial.Subject {
		return trial.Subject{Name: name, Role: trial.Ours, Open: r.pairs(func(client *pglock.Client) op {
			return pair(func(ctx context.Context, name string) (*pglock.Lease, error) { return lock(client, name).Acquire(ctx) })
		})}
	}
	return trial.Row{
		Number: "B13", What: "uncontended acquire+release of permits, one goroutine", Prepare: r.prepare(nil, createPermits...),
		Subjects: []trial.Subject{
			kind("semaphore", func(c *pglock.Client, name string) pglock.Lock { return c.Semaphore("semaphore "+name, 3) }),
			kind("reader", func(c *pglock.Client, name string) pglock.Lock { return c.Reader("rw " + name) }),
			kind("writer", func(c *pglock.Client, name string) pglock.Lock { return c.Writer("rw " + name) }),
			kind("eight names", eightNames),
			kind("lease", (*pglock.Client).Lock),
			{Name: "x/sync semaphore, in process", Role: trial.Peer, Open: inProcess},
			{Name: "pg_advisory_lock", Role: trial.Peer, Open: func(ctx context.Context, s *trial.Scope) (trial.Meter, error) {
				pool, err := r.connect(ctx, s, fewConns)
				return timed("pair", openAdvisory(pool).pair), err
			}},
		},
		Targets: []trial.Target{
			target("p50 of a semaphore's pair to that of a lease", "pair p50", "semaphore", "lease", trial.AtMost(1.15)),
			target("p50 of eight names' pair to that of a lease", "pair p50", "eight names", "lease", trial.AtMost(1.4)),
			target("p50 of a semaphore's pair to that of an advisory lock, which is not durable", "pair p50", "semaphore", "pg_advisory_lock", trial.Rule{}),
			target("p50 of a lease's pair to that of an advisory lock, which is not durable", "pair p50", "lease", "pg_advisory_lock", trial.Rule{}),
			target("p50 of a reader's pair to that of a lease", "pair p50", "reader", "lease", trial.Rule{}),
			target("p50 of a writer's pair to that of a lease", "pair p50", "writer", "lease", trial.AtMost(1.5)),
		},
	}
}

// eightNames is a lock of eight names, which all are held or none.
func eightNames(client *pglock.Client, name string) pglock.Lock {
	locks := make([]pglock.Lock, 8)
	for i := range locks {
		locks[i] = client.Lock(fmt.Sprintf("%s part %d", name, i))
	}
	return client.All(locks...)
}

// electionRow is E1: campaign and resignation without another candidate, beside the pair of a plain lease.
// The payload is an address, as most leaders proclaim.
func electionRow() trial.Row {
	r := &lab{}
	return trial.Row{
		Number: "E1", What: "campaign+resign without another candidate, with a payload, one goroutine", Prepare: r.prepare(nil),
		Subjects: []trial.Subject{
			{Name: "election", Role: trial.Ours, Open: r.pairs(func(client *pglock.Client) op {
				elections := map[string]*leader.Election{}
				return func(ctx context.Context, name string) (err error) {
					e := elections[name]
					if e == nil {
						if e, err = leader.New(client, name); err != nil {
							return err
						}
						elections[name] = e
					}
					t, err := e.Campaign(ctx, "10.0.0.7:8080")
					if err != nil {
						return err
					}
					return t.Resign(ctx)
				}
			})},
			{Name: "acquire+release", Role: trial.Floor, Open: r.pairs(acquirePair)},
		},
		Targets: []trial.Target{
			target("p50 of a pair to that of acquire+release", "pair p50", "election", "acquire+release", trial.AtMost(1.3)),
		},
	}
}

// observerRow is B11: what an observer that counts the grants costs a pair.
func observerRow() trial.Row {
	const with, without = "with an observer", "without one"
	r := &lab{}
	var grants atomic.Int64
	counter := observe.Hooks{Acquire: func(context.Context, observe.AcquireEvent) { grants.Add(1) }}
	return trial.Row{
		Number: "B11", What: "uncontended acquire+release with an observer, one goroutine", Prepare: r.prepare(nil),
		Subjects: []trial.Subject{
			{Name: with, Role: trial.Ours, Open: r.pairs(acquirePair, pglock.WithObserver(counter))},
			{Name: without, Role: trial.Floor, Open: r.pairs(acquirePair)},
		},
		Targets: []trial.Target{target("p50 of a pair to that without an observer", "pair p50", with, without, trial.AtMost(1.1))},
	}
}

func inProcess(context.Context, *trial.Scope) (trial.Meter, error) {
	permits := semaphore.NewWeighted(3)
	return timed("pair", func(ctx context.Context, _ string) error {
		if err := permits.Acquire(ctx, 1); err != nil {
			return err
		}
		permits.Release(1)
		return nil
	}), nil
}
