package main

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/internal/bench/trial"
)

// txRow is B8: DoTx around a no-op, beside the same statements by hand.
func txRow() trial.Row {
	const ours, floor = "DoTx", "BEGIN+lock, COMMIT"
	r := &lab{}
	return trial.Row{
		Number: "B8", What: "DoTx around a no-op", Prepare: r.prepare(nil),
		Subjects: []trial.Subject{
			{Name: ours, Role: trial.Ours, Open: func(ctx context.Context, s *trial.Scope) (trial.Meter, error) {
				client, err := r.client(ctx, s, "pglock")
				return timed("transaction", func(ctx context.Context, name string) error { return client.DoTx(ctx, name, nothing) }), err
			}},
			{Name: floor, Role: trial.Floor, Open: r.pipelined},
		},
		Targets: []trial.Target{
			target("p50 to that of BEGIN and lock in one round trip, COMMIT in another", "transaction p50", ours, floor, trial.AtMost(1.1)),
		},
	}
}

func nothing(context.Context, pgx.Tx) error { return nil }

func (l *lab) pipelined(ctx context.Context, s *trial.Scope) (trial.Meter, error) {
	pool, err := l.connect(ctx, s, fewConns)
	return timed("transaction", func(ctx context.Context, name string) error {
		batch := &pgx.Batch{}
		batch.BeginTx(pgx.TxOptions{})
		batch.Queue("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", name)
		results := pool.SendBatch(ctx, batch)
		tx := results.Tx()
		if err := results.Close(); err != nil {
			_ = tx.Rollback(ctx)
			return err
		}
		return tx.Commit(ctx)
	}), err
}
