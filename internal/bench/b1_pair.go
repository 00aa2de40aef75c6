package main

import "github.com/pglock/pglock-go/internal/bench/trial"

// pairRow is B1: acquire and release of a lock without competition, beside the least that this needs:
// one durable change of a row. The two UPDATEs are a pair without the read before it, tokens, expiry and
// outcomes; they don't wait for the commit of the release either.
func pairRow() trial.Row {
	const update, twoUpdates = "UPDATE", "two UPDATEs, second not awaited"
	r := &lab{}
	least := target("p50 of a pair to p50 of a durable UPDATE", "pair p50", kindOurs, update, trial.AtMost(1.75))
	least.Against.Figure = "update p50"
	return trial.Row{
		Number:  "B1",
		What:    "uncontended acquire+release, one goroutine",
		Prepare: r.prepare(nil, createCounters...),
		Subjects: []trial.Subject{
			{Name: kindOurs, Role: trial.Ours, Open: r.pairs(acquirePair)},
			{Name: update, Role: trial.Floor, Open: r.statements("update", updateCounter)},
			{Name: twoUpdates, Role: trial.Floor, Open: r.statements("pair", updateCounter,
				`WITH async AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true))
				 UPDATE counters SET n = n + 1 FROM async WHERE name = $1`)},
			{Name: "SELECT 1", Role: trial.Floor, Open: r.statements("round trip", "SELECT 1 WHERE $1::text IS NOT NULL")},
		},
		Targets: []trial.Target{
			least,
			target("p50 of a pair to p50 of two UPDATEs, the second not awaited", "pair p50", kindOurs, twoUpdates, trial.AtMost(1.15)),
		},
	}
}
