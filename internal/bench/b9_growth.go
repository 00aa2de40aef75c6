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
			return &growthMeter{lab: r, client: client, each: pick(s.Scale, growthPairs, growthPairs/10, 2000) / pairNames}, err
		}}},
		Targets: []trial.Target{target("table and indexes, in bytes", "size", kindOurs, "", trial.AtMost(5e6))},
		Once:    true,
	}
}

type growthMeter struct {
	lab    *lab
	client *pglock.Client
	each   int // pairs, for each of pairNames names
	rate   trial.Rate
	size   float64
	hot    float64
}

func (m *growthMeter) Turn(ctx context.Context, _ time.Duration) error {
	began := time.Now()
	all, each := errgroup.WithContext(ctx)
	for i := range pairNames {
		all.Go(func() error {
			for range m.each {
				l, err := m.client.Acquire(each, fmt.Sprintf("name-%d", i))
				if err == nil {
					err = l.Release(each)
				}
				if err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := all.Wait(); err != nil {
		return err
	}
	m.rate.Add(m.each*pairNames, time.Since(began))
	return m.lab.pool.QueryRow(ctx, `SELECT pg_total_relation_size('pglock.distributed_locks') + pg_total_relation_size('pglock.lock_waiters'),
		(SELECT n_tup_hot_upd::float8 / greatest(n_tup_upd, 1) FROM pg_stat_user_tables WHERE relname = 'distributed_locks')`).Scan(&m.size, &m.hot)
}

func (m *growthMeter) Figures() []trial.Figure {
	return []trial.Figure{
		m.rate.Figure("pairs"),
		{Name: "size", Unit: trial.Bytes, Value: m.size},
		{Name: "heap-only updates", Unit: trial.Percent, Value: 100 * m.hot},
	}
}
