package main

import (
	"context"

	"github.com/pglock/pglock-go/internal/bench/trial"
)

const (
	// manyNames is the size of the large table, and shortNames in a short run.
	manyNames  = 1_000_000
	shortNames = 20_000

	// fewNames is the size of the small one: it fits into a few pages.
	fewNames = 1000
)

// millionRow is B6: the cost of an acquire in a table with a million names, beside a small table.
func millionRow() trial.Row {
	const knownMany, knownFew = "known name of a million", "known name of a thousand"
	const newMany, newNone = "new name beside a million", "new name in an empty table"
	r := &lab{}
	many := func(s trial.Scale) int { return pick(s, manyNames, manyNames, shortNames) }
	subject := func(name string, role trial.Role, schema string, names func(trial.Scale) func() string) trial.Subject {
		return trial.Subject{Name: name, Role: role, Open: func(ctx context.Context, s *trial.Scope) (trial.Meter, error) {
			client, err := r.client(ctx, s, schema)
			return timedLock("acquire", names(s.Scale), ours(client).lock), err
		}}
	}
	unknown := func(trial.Scale) func() string { return alwaysNew() }
	return trial.Row{
		Number: "B6", What: "acquire in a table of 1,000,000 names",
		Prepare: func(ctx context.Context, s *trial.Scope) error {
			if err := r.prepare(nil)(ctx, s); err != nil {
				return err
			}
			for schema, n := range map[string]int{"many": many(s.Scale), "few": fewNames, "none": 0} {
				if err := r.table(ctx, schema, n); err != nil {
					return err
				}
			}
			return r.exec(ctx, "CHECKPOINT")
		},
		Subjects: []trial.Subject{
			subject(knownMany, trial.Ours, "many", func(s trial.Scale) func() string { return atRandom(many(s)) }),
			subject(knownFew, trial.Floor, "few", func(trial.Scale) func() string { return atRandom(fewNames) }),
			subject(newMany, trial.Ours, "many", unknown),
			{Name: newNone, Role: trial.Floor, Open: r.newNamesInEmptyTable},
		},
		Targets: []trial.Target{
			target("p50 with a million names to p50 with few", "acquire p50", knownMany, knownFew, trial.AtMost(1.1)),
			target("p50 of a first grant beside a million names to p50 in an empty table", "acquire p50", newMany, newNone, trial.AtMost(1.1)),
		},
	}
}

// newNamesInEmptyTable acquires names that have never been used in a table that is emptied before it has
// grown.
func (l *lab) newNamesInEmptyTable(ctx context.Context, s *trial.Scope) (trial.Meter, error) {
	client, err := l.client(ctx, s, "none")
	acquired := 0
	return timedLock("acquire", alwaysNew(), func(ctx context.Context, name string) (unlockFunc, error) {
		unlock, err := ours(client).lock(ctx, name)
		return func(ctx context.Context) error {
			acquired++
			if err := unlock(ctx); err != nil || acquired%fewNames > 0 {
				return err
			}
			return l.exec(ctx, "TRUNCATE none.distributed_locks")
		}, err
	}), err
}
