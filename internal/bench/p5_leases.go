package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/pglock/pglock-go/internal/bench/trial"
	"github.com/pglock/pglock-go/pglock"
)

const (
	manyLeases = 10_000
	leaseTTL   = 30 * time.Second
	leaseTime  = 5 * time.Minute

	shortLeases    = 200
	shortLeaseTTL  = 900 * time.Millisecond
	shortLeaseTime = time.Second
)

// manyLeasesRow is P5: what it costs to keep leases.
func manyLeasesRow() trial.Row {
	r := &waitersLab{}
	ours := func(figure string) []trial.Ref { return []trial.Ref{{Subject: "pglock", Figure: figure}} }
	return trial.Row{
		Number:  "P5",
		What:    fmt.Sprintf("%d live leases in one process, TTL %v, for %v", manyLeases, leaseTTL, leaseTime),
		Prepare: r.prepare,
		Subjects: []trial.Subject{{Name: "pglock", Role: trial.Ours, Open: func(ctx context.Context, s *trial.Scope) (trial.Meter, error) {
			m := &leasesMeter{lab: &r.lab, n: manyLeases, ttl: leaseTTL, time: leaseTime}
			if s.Short {
				m.n, m.ttl, m.time = shortLeases, shortLeaseTTL, shortLeaseTime
			}
			var err error
			m.client, err = r.client(ctx, s, "pglock", pglock.WithTTL(m.ttl))
			return m, err
		}}},
		Targets: []trial.Target{
			{What: "leases lost", Ours: ours("lost"), Rule: trial.AtMost(0).InEveryRound()},
			{What: "statements a second", Ours: ours("statements"), Rule: trial.AtMost(2)},
			{What: "percent of a core", Ours: ours("processor"), Rule: trial.AtMost(5)},
			{What: "connections", Ours: ours("connections"), Rule: trial.AtMost(3).InEveryRound()},
		},
		Once: true,
	}
}

type leasesMeter struct {
	lab    *lab
	client *pglock.Client
	n      int
	ttl    time.Duration
	time   time.Duration

	lost, statements, processor, connections float64
}

func (m *leasesMeter) Turn(ctx context.Context, _ time.Duration) error {
	leases := make([]*pglock.Lease, m.n)
	errs := make([]error, m.n)
	var all sync.WaitGroup
	for i := range leases {
		all.Go(func() { leases[i], errs[i] = m.client.TryAcquire(ctx, fmt.Sprintf("name-%d", i)) })
	}
	all.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	began, used, transactions := time.Now(), processorTime(), m.transactions(ctx)
	looks := 0.0
	for time.Since(began) < m.time {
		var connections float64
		if err := m.lab.pool.QueryRow(ctx, "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE '%pglock%'").Scan(&connections); err != nil {
			return err
		}
		looks++
		m.connections = max(m.connections, connections)
		select {
		case <-time.After(m.time / 20):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	took := time.Since(began)
	m.processor = 100 * (processorTime() - used).Seconds() / took.Seconds()
	m.statements = (m.transactions(ctx) - transactions - looks) / took.Seconds()
	for _, l := range leases {
		if l.Err() != nil {
			m.lost++
		}
	}
	for _, l := range leases {
		all.Go(func() { _ = l.Release(ctx) })
	}
	all.Wait()
	return nil
}

// transactions returns how many the server has committed, this one apart. What backends
// have not reported yet is missing, which over minutes is little.
func (m *leasesMeter) transactions(ctx context.Context) (n float64) {
	_ = m.lab.pool.QueryRow(ctx, "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()").Scan(&n)
	return n
}

func (m *leasesMeter) Figures() []trial.Figure {
	return []trial.Figure{
		{Name: "lost", Unit: trial.Count, Value: m.lost},
		{Name: "statements", Unit: trial.PerSecond, Value: m.statements},
		{Name: "processor", Unit: trial.Percent, Value: m.processor},
		{Name: "connections", Unit: trial.Count, Value: m.connections},
	}
}
