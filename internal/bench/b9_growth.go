package main

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/pglock/pglock-go/internal/bench/trial"
	"github.com/pglock/pglock-go/pglock"
)

// growthPairs is the number of pairs, of which a quick run takes a tenth.
const growthPairs = 1_000_000

// growthRow is B9: the size of the table after a million grants.
func growthRow() trial.Row {
	r := &lab{}
	return trial.Row{
		Number: "B9", What: fmt.Sprintf("%d acquire+release on %d names", growthPairs, pairNames), Prepare: r.prepare(nil),
		Subjects: []trial.Subject{{Name: kindOurs, Role: trial.Ours, Open: func(ctx context.Context, s *trial.Scope) (trial.Meter, error) {
			client, err := r.client(ctx, s, "pglock")
			times := pick(s.Scale, growthPairs, growthPairs/10, 2000) / pairNames
			return &turnMeter{turn: func(ctx context.Context, _ time.Duration) ([]trial.Figure, error) {
				return r.grow(ctx, client, times)
			}}, err
		}}},
		Targets: []trial.Target{target("table and indexes, in bytes", "size", kindOurs, "", trial.AtMost(1e6))},
		Once:    true,
	}
}

// grow acquires and releases each of pairNames names so many times.
func (l *lab) grow(ctx context.Context, client *pglock.Client, times int) ([]trial.Figure, error) {
	began := time.Now()
	all, each := errgroup.WithContext(ctx)
	for i := range pairNames {
		all.Go(func() (err error) {
			for n := 0; err == nil && n < times; n++ {
				err = acquirePair(client)(each, fmt.Sprintf("name-%d", i))
			}
			return err
		})
	}
	if err := all.Wait(); err != nil {
		return nil, err
	}
	took := time.Since(began)
	var size, hot float64
	err := l.pool.QueryRow(ctx, `
		SELECT pg_total_relation_size('pglock.distributed_locks') + pg_total_relation_size('pglock.lock_waiters'),
			(SELECT n_tup_hot_upd::float8 / greatest(n_tup_upd, 1) FROM pg_stat_user_tables WHERE relname = 'distributed_locks')`).Scan(&size, &hot)
	return []trial.Figure{
		trial.PerTime("pairs", times*pairNames, took),
		{Name: "size", Unit: trial.Bytes, Value: size},
		{Name: "heap-only updates", Unit: trial.Percent, Value: 100 * hot},
	}, err
}
