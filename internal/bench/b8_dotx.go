//go:build !base

package main

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/bench/trial"
)

// txRow is B8: DoTx around a no-op, beside the same statements by hand.
func txRow() trial.Row {
	r := &txLab{}
	return trial.Row{
		Number:  "B8",
		What:    "DoTx around a no-op",
		Prepare: r.prepare,
		Subjects: []trial.Subject{
			{Name: "DoTx", Role: trial.Ours, Open: r.ours},
			{Name: "DoTx, with a time-out", Role: trial.Ours, Open: r.bounded},
			{Name: "BEGIN+lock, COMMIT", Role: trial.Floor, Open: r.pipelined},
			{Name: "BEGIN, lock, COMMIT", Role: trial.Peer, Open: r.oneByOne},
		},
		Targets: []trial.Target{{
			What:    "p50 to that of BEGIN and lock in one round trip, COMMIT in another",
			Ours:    []trial.Ref{{Subject: "DoTx", Figure: "transaction p50"}},
			Against: trial.Ref{Subject: "BEGIN+lock, COMMIT", Figure: "transaction p50"},
			Rule:    trial.AtMost(1.1),
		}},
	}
}

type txLab struct{ lab }

func (r *txLab) prepare(ctx context.Context, s *trial.Scope) error {
	if err := r.lab.prepare(ctx, s, nil); err != nil {
		return err
	}
	return r.migrate(ctx, "pglock")
}

func (r *txLab) ours(ctx context.Context, s *trial.Scope) (trial.Meter, error) {
	client, err := r.client(ctx, s, "pglock")
	if err != nil {
		return nil, err
	}
	return newTimedMeter("transaction", func(ctx context.Context, name string) error { return client.DoTx(ctx, name, nothing) }), nil
}

func (r *txLab) bounded(ctx context.Context, s *trial.Scope) (trial.Meter, error) {
	client, err := r.client(ctx, s, "pglock")
	if err != nil {
		return nil, err
	}
	return newTimedMeter("transaction", func(ctx context.Context, name string) error {
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		return client.DoTx(ctx, name, nothing)
	}), nil
}

func nothing(context.Context, pgx.Tx) error { return nil }

const lockByHand = "SELECT pg_advisory_xact_lock(hashtextextended($1, 0))"

func (r *txLab) pipelined(ctx context.Context, s *trial.Scope) (trial.Meter, error) {
	pool, err := r.connect(ctx, s, fewConns)
	if err != nil {
		return nil, err
	}
	return newTimedMeter("transaction", func(ctx context.Context, name string) error { return pipelined(ctx, pool, name) }), nil
}

func pipelined(ctx context.Context, pool *pgxpool.Pool, name string) error {
	batch := &pgx.Batch{}
	batch.BeginTx(pgx.TxOptions{})
	batch.Queue(lockByHand, name)
	results := pool.SendBatch(ctx, batch)
	tx := results.Tx()
	if err := results.Close(); err != nil {
		_ = tx.Rollback(ctx)
		return err
	}
	return tx.Commit(ctx)
}

func (r *txLab) oneByOne(ctx context.Context, s *trial.Scope) (trial.Meter, error) {
	pool, err := r.connect(ctx, s, fewConns)
	if err != nil {
		return nil, err
	}
	return newTimedMeter("transaction", func(ctx context.Context, name string) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, lockByHand, name)
			return err
		})
	}), nil
}
