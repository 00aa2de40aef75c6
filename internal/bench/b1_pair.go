package main

import (
	"context"
	"fmt"

	"github.com/pglock/pglock-go/internal/bench/trial"
)

// pairRow is B1: acquire and release of a lock without competition, beside the least that this needs:
// one durable change of a row.
func pairRow() trial.Row {
	r := &pairLab{}
	return trial.Row{
		Number:  "B1",
		What:    "uncontended acquire+release, one goroutine",
		Prepare: r.prepare,
		Subjects: []trial.Subject{
			{Name: "pglock", Role: trial.Ours, Open: r.pairs},
			{Name: "UPDATE", Role: trial.Floor, Open: r.updates},
			{Name: "two UPDATEs, second not awaited", Role: trial.Floor, Open: r.barePairs},
			{Name: "SELECT 1", Role: trial.Floor, Open: r.roundTrips},
		},
		Targets: []trial.Target{{
			What:    "p50 of a pair to p50 of a durable UPDATE",
			Ours:    []trial.Ref{{Subject: "pglock", Figure: "pair p50"}},
			Against: trial.Ref{Subject: "UPDATE", Figure: "update p50"},
			Rule:    trial.AtMost(1.8),
		}, {
			What:    "p50 of a pair to p50 of two UPDATEs, the second not awaited",
			Ours:    []trial.Ref{{Subject: "pglock", Figure: "pair p50"}},
			Against: trial.Ref{Subject: "two UPDATEs, second not awaited", Figure: "pair p50"},
			Rule:    trial.AtMost(1.25),
		}},
	}
}

type pairLab struct{ lab }

func (r *pairLab) prepare(ctx context.Context, s *trial.Scope) error {
	if err := r.lab.prepare(ctx, s, nil); err != nil {
		return err
	}
	if err := r.migrate(ctx, "pglock"); err != nil {
		return err
	}
	if err := r.fill(ctx, "pglock", pairNames); err != nil {
		return err
	}
	return r.exec(ctx,
		"CREATE TABLE counters (name text PRIMARY KEY, n bigint NOT NULL)",
		fmt.Sprintf("INSERT INTO counters SELECT 'name-' || i, 0 FROM generate_series(0, %d) AS i", pairNames-1),
		"VACUUM ANALYZE counters")
}

func (r *pairLab) pairs(ctx context.Context, s *trial.Scope) (trial.Meter, error) {
	client, err := r.client(ctx, s, "pglock")
	if err != nil {
		return nil, err
	}
	return newPairMeter(&r.lab, client, inTurn()), nil
}

const updateCounter = "UPDATE counters SET n = n + 1 WHERE name = $1"

func (r *pairLab) updates(ctx context.Context, s *trial.Scope) (trial.Meter, error) {
	return r.floor(ctx, s, "update", inTurn(), updateCounter)
}

// barePairs is a pair without the read before it, tokens, expiry and outcomes. It does not wait for
// the commit of the release either.
func (r *pairLab) barePairs(ctx context.Context, s *trial.Scope) (trial.Meter, error) {
	return r.floor(ctx, s, "pair", inTurn(), updateCounter,
		`WITH async AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true))
		 UPDATE counters SET n = n + 1 FROM async WHERE name = $1`)
}

func (r *pairLab) roundTrips(ctx context.Context, s *trial.Scope) (trial.Meter, error) {
	return r.floor(ctx, s, "round trip", inTurn(), "SELECT 1 WHERE $1::text IS NOT NULL")
}
