//go:build !base

package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/bench/trial"
	"github.com/pglock/pglock-go/pglock"
)

// rowCounts are how many rows a statement of B7 writes.
var rowCounts = []int{1, 1000}

// guardRow is B7: what the fence costs a write, beside the same write without it, and
// what the triggers of a protected table cost for each row.
func guardRow() trial.Row {
	r := &guardLab{}
	row := trial.Row{
		Number:  "B7",
		What:    "guarded write",
		Prepare: r.prepare,
		Subjects: []trial.Subject{
			{Name: "Batch", Role: trial.Ours, Open: r.writes((*guardLab).batch)},
			{Name: "UPDATE", Role: trial.Floor, Open: r.writes((*guardLab).update)},
			{Name: "Guard in a transaction", Role: trial.Ours, Open: r.writes((*guardLab).guard)},
			{Name: "transaction", Role: trial.Floor, Open: r.writes((*guardLab).transaction)},
		},
		Targets: []trial.Target{
			{
				What:    "p50 of a guarded UPDATE in one round trip to an unguarded one",
				Ours:    []trial.Ref{{Subject: "Batch", Figure: "write p50"}},
				Against: trial.Ref{Subject: "UPDATE", Figure: "write p50"},
				Rule:    trial.AtMost(1.25),
			},
		},
	}
	for _, n := range rowCounts {
		floor := fmt.Sprintf("UPDATE of %d rows", n)
		row.Subjects = append(row.Subjects, trial.Subject{Name: floor, Role: trial.Floor, Open: r.statement(unprotected, n, "")})
		for what, column := range rowUpdates {
			name := fmt.Sprintf("protected UPDATE of %d rows, %s", n, what)
			row.Subjects = append(row.Subjects, trial.Subject{Name: name, Role: trial.Ours, Open: r.statement(protected, n, column)})
			row.Targets = append(row.Targets, trial.Target{
				What:    "p50 of a " + name + ", in one round trip with bind and commit, to an unprotected one",
				Ours:    []trial.Ref{{Subject: name, Figure: "write p50"}},
				Against: trial.Ref{Subject: floor, Figure: "write p50"},
				Rule:    trial.AtMost(1.35),
			})
		}
		for _, kind := range []string{unprotected, protected, named} {
			role := trial.Ours
			if kind == unprotected {
				role = trial.Floor
			}
			row.Subjects = append(row.Subjects, trial.Subject{Name: fmt.Sprintf("%s, %d rows", kind, n), Role: role, Open: r.tables(kind, n)})
		}
	}
	return row
}

type guardLab struct {
	lab
	lease *pglock.Lease // of account:1
	later *pglock.Lease // of account:2
	pool  *pgxpool.Pool // like an application's
}

func (r *guardLab) prepare(ctx context.Context, s *trial.Scope) error {
	if err := r.lab.prepare(ctx, s, nil); err != nil {
		return err
	}
	if err := r.migrate(ctx, "pglock"); err != nil {
		return err
	}
	if err := r.fill(ctx, "pglock", pairNames); err != nil {
		return err
	}
	client, err := r.client(ctx, s, "pglock")
	if err != nil {
		return err
	}
	if r.lease, err = client.Acquire(ctx, "account:1"); err != nil {
		return err
	}
	if r.later, err = client.Acquire(ctx, "account:2"); err != nil {
		return err
	}
	if r.pool, err = r.connect(ctx, s, fewConns); err != nil {
		return err
	}
	return r.exec(ctx,
		"CREATE TABLE counters (name text PRIMARY KEY, n bigint NOT NULL)",
		fmt.Sprintf("INSERT INTO counters SELECT 'name-' || i, 0 FROM generate_series(0, %d) AS i", pairNames-1),
		"VACUUM ANALYZE counters")
}

// write carries out updateCounter in one of several ways.
type write func(r *guardLab, ctx context.Context, name string) error

func (r *guardLab) update(ctx context.Context, name string) error {
	_, err := r.pool.Exec(ctx, updateCounter, name)
	return err
}

func (r *guardLab) batch(ctx context.Context, name string) error {
	b := &pgx.Batch{}
	b.Queue(updateCounter, name)
	return fencing.Batch(ctx, r.pool, r.lease.Fence(), b)
}

func (r *guardLab) transaction(ctx context.Context, name string) error {
	return pgx.BeginFunc(ctx, r.pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, updateCounter, name)
		return err
	})
}

func (r *guardLab) guard(ctx context.Context, name string) error {
	return pgx.BeginFunc(ctx, r.pool, func(tx pgx.Tx) error {
		if err := r.lease.Guard(ctx, tx); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, updateCounter, name)
		return err
	})
}

func (r *guardLab) writes(how write) func(context.Context, *trial.Scope) (trial.Meter, error) {
	return func(context.Context, *trial.Scope) (trial.Meter, error) {
		return &writeMeter{lab: r, how: how, name: inTurn(), took: trial.NewLatencies()}, nil
	}
}

// writeMeter times writes, one after the other.
type writeMeter struct {
	lab  *guardLab
	how  write
	name func() string
	took *trial.Latencies
}

func (m *writeMeter) Turn(ctx context.Context, d time.Duration) error {
	_, err := trial.Repeat(ctx, d, func(ctx context.Context) error {
		name := m.name()
		began := time.Now()
		err := m.how(m.lab, ctx, name)
		m.took.Record(time.Since(began))
		return err
	})
	return err
}

func (m *writeMeter) Figures() []trial.Figure { return m.took.Figures("write") }
