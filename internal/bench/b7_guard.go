package main

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/bench/trial"
	"github.com/pglock/pglock-go/pglock"
)

// guardRow is B7: what the fence costs a write, beside the same write without it, and what the triggers
// of a protected table cost. A holder's UPDATE meets rows with its own token, or rows that it must stamp:
// the second is what the first write of a grant does, and giving the column another value does it each
// time.
func guardRow() trial.Row {
	r := &guardLab{}
	row := trial.Row{
		Number: "B7", What: "guarded write", Prepare: r.prepare,
		Subjects: []trial.Subject{
			{Name: "Batch", Role: trial.Ours, Open: r.writes(r.batch(updateCounter))},
			{Name: "UPDATE", Role: trial.Floor, Open: r.writes(r.update(updateCounter))},
			{Name: "Guard in a transaction", Role: trial.Ours, Open: r.writes(r.transaction(func(ctx context.Context, tx pgx.Tx) error {
				return r.lease.Guard(ctx, tx)
			}))},
			{Name: "transaction", Role: trial.Floor, Open: r.writes(r.transaction(nothing))},
		},
		Targets: []trial.Target{
			target("p50 of a guarded UPDATE in one round trip to an unguarded one", "write p50", "Batch", "UPDATE", trial.AtMost(1.2)),
			target("p50 of a guarded transaction to one without the guard", "write p50", "Guard in a transaction", "transaction", trial.Rule{}),
		},
	}
	for _, c := range []struct {
		n              int
		again, stamped float64 // at most
	}{{1, 1.45, 1.45}, {1000, 1.7, 2.5}} {
		floor := fmt.Sprintf("UPDATE of %d rows", c.n)
		row.Subjects = append(row.Subjects, trial.Subject{Name: floor, Role: trial.Floor, Open: r.rows(fmt.Sprint("plain_", c.n), c.n, false, "")})
		add := func(what, column string, most float64) {
			name := fmt.Sprintf("protected UPDATE of %d rows, %s", c.n, what)
			row.Subjects = append(row.Subjects, trial.Subject{Name: name, Role: trial.Ours, Open: r.rows(fmt.Sprint(what, "_", c.n), c.n, true, column)})
			row.Targets = append(row.Targets, target("p50 of a "+name+", in one round trip with bind and commit, to an unprotected one",
				"write p50", name, floor, trial.AtMost(most)))
		}
		add("again", "", c.again)
		add("stamped", ", fence_token = 0", c.stamped)
	}
	return row
}

type guardLab struct {
	lab
	lease *pglock.Lease
	pool  *pgxpool.Pool // like an application's
}

func (r *guardLab) prepare(ctx context.Context, s *trial.Scope) error {
	if err := r.lab.prepare(nil, createCounters...)(ctx, s); err != nil {
		return err
	}
	client, err := r.client(ctx, s, "pglock")
	if err != nil {
		return err
	}
	if r.lease, err = client.Acquire(ctx, "account:1"); err != nil {
		return err
	}
	r.pool, err = r.connect(ctx, s, fewConns)
	return err
}

func (r *guardLab) writes(do op) trial.Open {
	return func(context.Context, *trial.Scope) (trial.Meter, error) { return timed("write", do), nil }
}

// update runs a statement alone, batch in one round trip with the fence, and transaction in a transaction
// that begins with another step.
func (r *guardLab) update(statement string) op {
	return func(ctx context.Context, name string) error {
		_, err := r.pool.Exec(ctx, statement, arguments(statement, name)...)
		return err
	}
}

func (r *guardLab) batch(statement string) op {
	return func(ctx context.Context, name string) error {
		b := &pgx.Batch{}
		b.Queue(statement, arguments(statement, name)...)
		return fencing.Batch(ctx, r.pool, r.lease.Fence(), b)
	}
}

func (r *guardLab) transaction(first func(ctx context.Context, tx pgx.Tx) error) op {
	return func(ctx context.Context, name string) error {
		return pgx.BeginFunc(ctx, r.pool, func(tx pgx.Tx) error {
			if err := first(ctx, tx); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, updateCounter, name)
			return err
		})
	}
}

// arguments returns the arguments of a statement: the name, unless it writes all rows.
func arguments(statement, name string) []any {
	if statement != updateCounter {
		return nil
	}
	return []any{name}
}

// rows opens whole writes: an UPDATE of n rows that commits, in a table that is protected or not.
func (r *guardLab) rows(table string, n int, protected bool, column string) trial.Open {
	return func(ctx context.Context, s *trial.Scope) (trial.Meter, error) {
		err := r.exec(ctx,
			fmt.Sprintf("CREATE TABLE %s (id bigint PRIMARY KEY, account int NOT NULL, v bigint NOT NULL, fence_token bigint) WITH (fillfactor = 50)", table),
			fmt.Sprintf("INSERT INTO %s SELECT i, 1, 0, %d FROM generate_series(1, %d) AS i", table, r.lease.Token(), n))
		if err != nil {
			return nil, err
		}
		update := fmt.Sprintf("UPDATE %s SET v = v + 1%s", table, column)
		if !protected {
			return timed("write", r.update(update)), nil
		}
		return timed("write", r.batch(update)), fencing.Protect(ctx, r.pool, table)
	}
}
