//go:build !base

package main

import (
	"context"
	"fmt"

	"golang.org/x/sync/semaphore"

	"github.com/pglock/pglock-go/internal/bench/trial"
	"github.com/pglock/pglock-go/pglock"
)

// permitsRow is B13: the cost of a pair on a semaphore and on a readers-writer lock, beside that of a
// lease, of a semaphore in the process, and of an advisory lock that nothing waits for.
func permitsRow() trial.Row {
	r := &permitsLab{}
	return trial.Row{
		Number:  "B13",
		What:    "uncontended acquire+release of permits, one goroutine",
		Prepare: r.prepare,
		Subjects: []trial.Subject{
			{Name: "semaphore", Role: trial.Ours, Open: r.semaphores},
			{Name: "reader", Role: trial.Ours, Open: r.readers},
			{Name: "writer", Role: trial.Ours, Open: r.writers},
			{Name: "lease", Role: trial.Ours, Open: r.leases},
			{Name: "x/sync semaphore, in process", Role: trial.Peer, Open: r.inProcess},
			{Name: "pg_advisory_lock", Role: trial.Peer, Open: r.advisory},
		},
		Targets: []trial.Target{{
			What:    "p50 of a semaphore's pair to that of a lease",
			Ours:    []trial.Ref{{Subject: "semaphore", Figure: "pair p50"}},
			Against: trial.Ref{Subject: "lease", Figure: "pair p50"},
			Rule:    trial.AtMost(1.5),
		}, {
			What:    "p50 of a semaphore's pair to that of an advisory lock, which is not durable",
			Ours:    []trial.Ref{{Subject: "semaphore", Figure: "pair p50"}},
			Against: trial.Ref{Subject: "pg_advisory_lock", Figure: "pair p50"},
			Rule:    trial.NoBound(),
		}},
	}
}

type permitsLab struct{ lab }

func (r *permitsLab) prepare(ctx context.Context, s *trial.Scope) error {
	if err := r.lab.prepare(ctx, s, nil); err != nil {
		return err
	}
	if err := r.migrate(ctx, "pglock"); err != nil {
		return err
	}
	if err := r.fill(ctx, "pglock", pairNames); err != nil {
		return err
	}
	for kind, capacity := range map[string]int{"semaphore ": 3, "rw ": 1 << 30} {
		err := r.exec(ctx, fmt.Sprintf(`INSERT INTO pglock.distributed_locks (name, token, version, acquired_at, expires_at, capacity, in_use)
			SELECT '%s' || name, token, version, acquired_at, expires_at, %d, 0 FROM pglock.distributed_locks WHERE capacity IS NULL`, kind, capacity))
		if err != nil {
			return err
		}
	}
	return nil
}

// pairs returns a meter of pairs of acquire and release.
func (r *permitsLab) pairs(
	ctx context.Context, s *trial.Scope, acquire func(ctx context.Context, client *pglock.Client, name string) (*pglock.Lease, error),
) (trial.Meter, error) {
	client, err := r.client(ctx, s, "pglock")
	if err != nil {
		return nil, err
	}
	return newTimedMeter("pair", func(ctx context.Context, name string) error {
		l, err := acquire(ctx, client, name)
		if err != nil {
			return err
		}
		return l.Release(ctx)
	}), nil
}

func (r *permitsLab) leases(ctx context.Context, s *trial.Scope) (trial.Meter, error) {
	return r.pairs(ctx, s, func(ctx context.Context, client *pglock.Client, name string) (*pglock.Lease, error) {
		return client.Acquire(ctx, name)
	})
}

func (r *permitsLab) semaphores(ctx context.Context, s *trial.Scope) (trial.Meter, error) {
	return r.pairs(ctx, s, func(ctx context.Context, client *pglock.Client, name string) (*pglock.Lease, error) {
		return client.Semaphore("semaphore "+name, 3).Acquire(ctx)
	})
}

func (r *permitsLab) readers(ctx context.Context, s *trial.Scope) (trial.Meter, error) {
	return r.pairs(ctx, s, func(ctx context.Context, client *pglock.Client, name string) (*pglock.Lease, error) {
		return client.Reader("rw " + name).Acquire(ctx)
	})
}

func (r *permitsLab) writers(ctx context.Context, s *trial.Scope) (trial.Meter, error) {
	return r.pairs(ctx, s, func(ctx context.Context, client *pglock.Client, name string) (*pglock.Lease, error) {
		return client.Writer("rw " + name).Acquire(ctx)
	})
}

func (r *permitsLab) inProcess(context.Context, *trial.Scope) (trial.Meter, error) {
	permits := semaphore.NewWeighted(3)
	return newTimedMeter("pair", func(ctx context.Context, _ string) error {
		if err := permits.Acquire(ctx, 1); err != nil {
			return err
		}
		permits.Release(1)
		return nil
	}), nil
}

func (r *permitsLab) advisory(ctx context.Context, s *trial.Scope) (trial.Meter, error) {
	pool, err := r.connect(ctx, s, fewConns)
	if err != nil {
		return nil, err
	}
	return newTimedMeter("pair", func(ctx context.Context, name string) error {
		conn, err := pool.Acquire(ctx)
		if err != nil {
			return err
		}
		defer conn.Release()
		if _, err := conn.Exec(ctx, "SELECT pg_advisory_lock(hashtextextended($1, 0))", name); err != nil {
			return err
		}
		_, err = conn.Exec(ctx, "SELECT pg_advisory_unlock(hashtextextended($1, 0))", name)
		return err
	}), nil
}
