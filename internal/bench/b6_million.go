package main

import (
	"context"
	"time"

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
	r := &millionLab{}
	return trial.Row{
		Number:  "B6",
		What:    "acquire in a table of 1,000,000 names",
		Prepare: r.prepare,

		Estimate: fillTime,
		Subjects: []trial.Subject{
			{Name: "known name of a million", Role: trial.Ours, Open: r.knownNames("many", many)},
			{Name: "known name of a thousand", Role: trial.Floor, Open: r.knownNames("few", few)},
			{Name: "new name beside a million", Role: trial.Ours, Open: r.newNamesAmongMany},
			{Name: "new name in an empty table", Role: trial.Floor, Open: r.newNamesInEmptyTable},
		},
		Targets: []trial.Target{
			{
				What:    "p50 with a million names to p50 with few",
				Ours:    []trial.Ref{{Subject: "known name of a million", Figure: "acquire p50"}},
				Against: trial.Ref{Subject: "known name of a thousand", Figure: "acquire p50"},
				Rule:    trial.AtMost(1.15),
			},
			{
				What:    "p50 of a first grant beside a million names to p50 in an empty table",
				Ours:    []trial.Ref{{Subject: "new name beside a million", Figure: "acquire p50"}},
				Against: trial.Ref{Subject: "new name in an empty table", Figure: "acquire p50"},
				Rule:    trial.AtMost(1.15),
			},
		},
	}
}

type millionLab struct{ lab }

// fillTime is about how long it takes to fill a table with a million names.
func fillTime(s trial.Scale) time.Duration {
	if s.Short {
		return 5 * time.Second
	}
	return 15 * time.Second
}

// many and few are the numbers of names in the tables.
func many(s *trial.Scope) int {
	if s.Short {
		return shortNames
	}
	return manyNames
}

func few(*trial.Scope) int { return fewNames }

func (r *millionLab) prepare(ctx context.Context, s *trial.Scope) error {
	if err := r.lab.prepare(ctx, s, nil); err != nil {
		return err
	}
	for _, schema := range []string{"many", "few", "none"} {
		if err := r.migrate(ctx, schema); err != nil {
			return err
		}
	}
	if err := r.fill(ctx, "many", many(s)); err != nil {
		return err
	}
	if err := r.fill(ctx, "few", fewNames); err != nil {
		return err
	}
	return r.exec(ctx, "CHECKPOINT")
}

// knownNames acquires random names that have been used before.
func (r *millionLab) knownNames(schema string, count func(*trial.Scope) int) func(context.Context, *trial.Scope) (trial.Meter, error) {
	return func(ctx context.Context, s *trial.Scope) (trial.Meter, error) {
		client, err := r.client(ctx, s, schema)
		if err != nil {
			return nil, err
		}
		return newPairMeter(&r.lab, client, atRandom(count(s))), nil
	}
}

// newNamesAmongMany acquires names that have never been used.
func (r *millionLab) newNamesAmongMany(ctx context.Context, s *trial.Scope) (trial.Meter, error) {
	client, err := r.client(ctx, s, "many")
	if err != nil {
		return nil, err
	}
	return newPairMeter(&r.lab, client, alwaysNew()), nil
}

// newNamesInEmptyTable does the same in a table that is emptied before it has grown.
func (r *millionLab) newNamesInEmptyTable(ctx context.Context, s *trial.Scope) (trial.Meter, error) {
	client, err := r.client(ctx, s, "none")
	if err != nil {
		return nil, err
	}
	name, inTable := alwaysNew(), 0
	meter := newPairMeter(&r.lab, client, func() string {
		inTable++
		return name()
	})
	meter.before = func(ctx context.Context) error {
		if inTable < fewNames {
			return nil
		}
		inTable = 0
		return r.exec(ctx, "TRUNCATE none.distributed_locks")
	}
	return meter, nil
}
