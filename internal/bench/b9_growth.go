package main

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/pglock/pglock-go/internal/bench/trial"
	"github.com/pglock/pglock-go/pglock"
)

// growthPairs is the number of pairs, quickGrowth the number in a quick run, and shortGrowth that in a
// short one.
const (
	growthPairs = 1_000_000
	quickGrowth = 100_000
	shortGrowth = 2_000
)

// growthRow is B9: the size of the table after a million grants.
func growthRow() trial.Row {
	r := &waitersLab{}
	return trial.Row{
		Number:  "B9",
		What:    fmt.Sprintf("%d acquire+release on %d names", growthPairs, pairNames),
		Prepare: r.prepare,
		Subjects: []trial.Subject{{Name: "pglock", Role: trial.Ours, Open: func(ctx context.Context, s *trial.Scope) (trial.Meter, error) {
			client, err := r.client(ctx, s, "pglock")
			if err != nil {
				return nil, err
			}
			return &growthMeter{lab: &r.lab, client: client, pairs: growthCount(s.Scale)}, nil
		}}},
		Targets: []trial.Target{{
			What: "table and indexes, in bytes", Rule: trial.AtMost(5e6),
			Ours: []trial.Ref{{Subject: "pglock", Figure: "size"}},
		}},
		Once: true,
		Estimate: func(s trial.Scale) time.Duration {
			return 5*time.Second + time.Duration(growthCount(s))*50*time.Microsecond
		},
	}
}

func growthCount(s trial.Scale) int {
	switch {
	case s.Short:
		return shortGrowth
	case s.Quick:
		return quickGrowth
	}
	return growthPairs
}

type growthMeter struct {
	lab    *lab
	client *pglock.Client
	pairs  int
	rate   trial.Rate
	size   float64
	hot    float64
}

func (m *growthMeter) Turn(ctx context.Context, _ time.Duration) error {
	var left atomic.Int64
	left.Store(int64(m.pairs))
	names := make(chan string, pairNames)
	for i := range pairNames {
		names <- fmt.Sprintf("name-%d", i)
	}
	began := time.Now()
	_, err := trial.Crowd(ctx, pairNames, 0, 24*time.Hour, func(ctx context.Context) error {
		if left.Add(-1) < 0 {
			return errEnough
		}
		name := <-names
		defer func() { names <- name }()
		l, err := m.client.Acquire(ctx, name)
		if err != nil {
			return err
		}
		return l.Release(ctx)
	})
	if err != nil && err != errEnough { //nolint:errorlint // it is the cause itself
		return err
	}
	m.rate.Add(m.pairs, time.Since(began))
	return m.lab.pool.QueryRow(ctx, `SELECT pg_total_relation_size('pglock.distributed_locks') + pg_total_relation_size('pglock.lock_waiters'),
		(SELECT n_tup_hot_upd::float8 / greatest(n_tup_upd, 1) FROM pg_stat_user_tables WHERE relname = 'distributed_locks')`).Scan(&m.size, &m.hot)
}

// errEnough ends the crowd.
var errEnough = fmt.Errorf("bench: enough")

func (m *growthMeter) Figures() []trial.Figure {
	return []trial.Figure{
		m.rate.Figure("pairs"),
		{Name: "size", Unit: trial.Bytes, Value: m.size},
		{Name: "heap-only updates", Unit: trial.Percent, Value: 100 * m.hot},
	}
}
