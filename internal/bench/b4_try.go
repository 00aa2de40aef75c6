package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pglock/pglock-go/internal/bench/trial"
	"github.com/pglock/pglock-go/pglock"
)

const (
	// tryCrowd is the number of goroutines that try at once.
	tryCrowd = 64

	// fewConns is a client's default, and manyConns is one per goroutine.
	fewConns  = 4
	manyConns = tryCrowd
)

// quietSettings keep the server from writing WAL of its own, so that only the WAL of the tries is
// counted. Autovacuum runs, but finds nothing to do when prepare is done.
var quietSettings = map[string]string{
	"autovacuum_naptime": "1s",
	"checkpoint_timeout": "1h",
	"max_wal_senders":    "0",
	"wal_level":          "minimal",
	"max_connections":    "300",
}

// naiveUpsert is a common form of a lock table: it locks the row to find out that it must not change
// it, and that lock is a write.
const naiveUpsert = `
	INSERT INTO naive_locks AS l (name, holder, expires_at)
	VALUES ($1, $2, clock_timestamp() + interval '30 seconds')
	ON CONFLICT (name) DO UPDATE SET holder = EXCLUDED.holder, expires_at = EXCLUDED.expires_at
	WHERE l.expires_at < clock_timestamp()`

// errGranted means that the held lock was granted, so the measurement is void.
var errGranted = errors.New("bench: a held lock was granted")

// tryRow is B4: many goroutines try to acquire a held lock.
func tryRow() trial.Row {
	r := &tryLab{}
	conns := func(who string, n int) string { return fmt.Sprintf("%s, %d connections", who, n) }
	ours := func(figure string) []trial.Ref {
		return []trial.Ref{{Subject: conns("pglock", fewConns), Figure: figure}, {Subject: conns("pglock", manyConns), Figure: figure}}
	}
	subject := func(who string, n int, role trial.Role, open func(context.Context, *trial.Scope, int) (trial.Meter, error)) trial.Subject {
		return trial.Subject{Name: conns(who, n), Role: role, Open: func(ctx context.Context, s *trial.Scope) (trial.Meter, error) {
			return open(ctx, s, n)
		}}
	}
	return trial.Row{
		Number:  "B4",
		What:    fmt.Sprintf("try on a held name, %d goroutines", tryCrowd),
		Prepare: r.prepare,

		Throughput: true,
		Estimate:   func(trial.Scale) time.Duration { return 5*time.Second + 2*settleTime },
		Subjects: []trial.Subject{
			subject("pglock", fewConns, trial.Ours, r.tries),
			subject("pglock", manyConns, trial.Ours, r.tries),
			subject("naive upsert", fewConns, trial.Peer, r.upserts),
			subject("naive upsert", manyConns, trial.Peer, r.upserts),
			subject("SELECT of the row", fewConns, trial.Floor, r.reads),
			subject("SELECT of the row", manyConns, trial.Floor, r.reads),
		},
		Targets: []trial.Target{
			{
				What:    "tries a second to those of the naive upsert",
				Ours:    ours("tries"),
				Against: trial.Ref{Subject: conns("naive upsert", manyConns), Figure: "tries"},
				Rule:    trial.AtLeast(30),
			},
			{What: "WAL of all failed tries", Ours: ours("WAL")[:1], Rule: trial.AtMost(0).InEveryRound()},
			{What: "WAL of all failed tries", Ours: ours("WAL")[1:], Rule: trial.AtMost(0).InEveryRound()},
		},
	}
}

type tryLab struct{ lab }

// prepare acquires the name in both tables for longer than the run takes.
func (r *tryLab) prepare(ctx context.Context, s *trial.Scope) error {
	if err := r.lab.prepare(ctx, s, quietSettings); err != nil {
		return err
	}
	if err := r.migrate(ctx, "pglock"); err != nil {
		return err
	}
	holder, err := r.client(ctx, s, "pglock")
	if err != nil {
		return err
	}
	// A renewal in the middle of a turn would write WAL that is not the tries'.
	if _, err := holder.TryAcquire(ctx, "held", pglock.WithTTL(24*time.Hour), pglock.WithRenewEvery(0)); err != nil {
		return err
	}
	err = r.exec(ctx,
		"CREATE TABLE naive_locks (name text PRIMARY KEY, holder text NOT NULL, expires_at timestamptz NOT NULL)",
		"INSERT INTO naive_locks VALUES ('held', 'somebody', clock_timestamp() + interval '1 day')",
		"VACUUM ANALYZE")
	if err != nil || s.Short {
		return err
	}
	return r.settle(ctx)
}

// settleTime is more than two rounds of autovacuum.
const settleTime = 3 * time.Second

// settle returns when the server has written no WAL for settleTime.
func (r *tryLab) settle(ctx context.Context) error {
	for {
		bytes, err := r.written(ctx, func() error {
			select {
			case <-time.After(settleTime):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
		if bytes == 0 || err != nil {
			return err
		}
	}
}

func (r *tryLab) tries(ctx context.Context, s *trial.Scope, conns int) (trial.Meter, error) {
	client, err := r.client(ctx, s, "pglock", pglock.WithMaxConns(conns))
	if err != nil {
		return nil, err
	}
	return &crowdMeter{lab: &r.lab, op: func(ctx context.Context) error {
		switch _, err := client.TryAcquire(ctx, "held"); {
		case errors.Is(err, pglock.ErrNotAcquired):
			return nil
		case err == nil:
			return errGranted
		default:
			return err
		}
	}}, nil
}

func (r *tryLab) upserts(ctx context.Context, s *trial.Scope, conns int) (trial.Meter, error) {
	pool, err := r.connect(ctx, s, conns)
	if err != nil {
		return nil, err
	}
	return &crowdMeter{lab: &r.lab, op: func(ctx context.Context) error {
		tag, err := pool.Exec(ctx, naiveUpsert, "held", "somebody else")
		if err == nil && tag.RowsAffected() > 0 {
			return errGranted
		}
		return err
	}}, nil
}

func (r *tryLab) reads(ctx context.Context, s *trial.Scope, conns int) (trial.Meter, error) {
	pool, err := r.connect(ctx, s, conns)
	if err != nil {
		return nil, err
	}
	return &crowdMeter{lab: &r.lab, op: func(ctx context.Context) error {
		_, err := pool.Exec(ctx, "SELECT holder, expires_at FROM pglock.distributed_locks WHERE name = $1", "held")
		return err
	}}, nil
}
