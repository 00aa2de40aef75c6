package main

import (
	"context"
	"errors"
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

	// Leases with different TTLs, and the time for which they are held.
	leastTTL  = 10 * time.Second
	mostTTL   = time.Minute
	mixedTime = time.Minute

	// reportTime bounds the time after which an idle backend reports its commits.
	reportTime = 10 * time.Second

	// The times in a quick run: a renewal of each lease, and of the first ones.
	quickLeaseTime = 15 * time.Second
	quickMixedTime = 12 * time.Second

	// In a short run there are fewer, and time is divided by shortPart.
	shortLeases    = 200
	shortPart      = 30
	shortLeaseTime = time.Second
)

// manyLeasesRow is B5: the cost of holding leases.
func manyLeasesRow() trial.Row {
	r := &waitersLab{}
	same, mixed := "pglock", fmt.Sprintf("pglock, TTLs of %.0f s to %.0f s", leastTTL.Seconds(), mostTTL.Seconds())
	leases := func(least, most, rest, length, quick time.Duration) func(context.Context, *trial.Scope) (trial.Meter, error) {
		return func(_ context.Context, s *trial.Scope) (trial.Meter, error) {
			m := &leasesMeter{lab: &r.lab, ttls: spread(least, most, manyLeases), rest: rest, time: length}
			switch {
			case s.Short:
				m.ttls, m.rest, m.time = spread(least/shortPart, most/shortPart, shortLeases), 0, shortLeaseTime
			case s.Quick:
				m.time = quick
			}
			return m, nil
		}
	}
	figure := func(subject, figure string) []trial.Ref { return []trial.Ref{{Subject: subject, Figure: figure}} }
	return trial.Row{
		Number:  "B5",
		What:    fmt.Sprintf("%d live leases in one process, TTL %.0f s, for %.0f min", manyLeases, leaseTTL.Seconds(), leaseTime.Minutes()),
		Prepare: r.prepare,
		Subjects: []trial.Subject{
			{Name: same, Role: trial.Ours, Open: leases(leaseTTL, leaseTTL, reportTime, leaseTime, quickLeaseTime)},
			{Name: mixed, Role: trial.Ours, Open: leases(leastTTL, mostTTL, 0, mixedTime, quickMixedTime)},
		},
		Targets: []trial.Target{
			{What: "leases lost", Ours: figure(same, "lost"), Rule: trial.AtMost(0).InEveryRound()},
			{What: "statements a second", Ours: figure(same, "statements"), Rule: trial.AtMost(2)},
			{What: "percent of a core", Ours: figure(same, "processor"), Rule: trial.AtMost(5)},
			{What: "connections", Ours: figure(same, "connections"), Rule: trial.AtMost(3).InEveryRound()},
			{What: "leases lost, different TTLs", Ours: figure(mixed, "lost"), Rule: trial.AtMost(0).InEveryRound()},
		},
		Once: true,
		Estimate: func(s trial.Scale) time.Duration {
			switch {
			case s.Short:
				return 5 * time.Second
			case s.Quick:
				return 8*time.Second + reportTime + quickLeaseTime + quickMixedTime
			}
			return 8*time.Second + reportTime + leaseTime + mixedTime
		},
	}
}

// spread returns n durations from least to most, at equal steps.
func spread(least, most time.Duration, n int) []time.Duration {
	all := make([]time.Duration, n)
	for i := range all {
		all[i] = least + (most-least)*time.Duration(i)/time.Duration(max(n-1, 1))
	}
	return all
}

type leasesMeter struct {
	lab  *lab
	ttls []time.Duration // of each lease
	rest time.Duration   // until what acquiring took is reported, and not counted any more
	time time.Duration

	lost, statements, processor, connections float64
}

// Turn opens a client and closes it: an idle client would be counted, too.
func (m *leasesMeter) Turn(ctx context.Context, _ time.Duration) error {
	client, err := pglock.Open(ctx, m.lab.pool)
	if err != nil {
		return err
	}
	err = m.hold(ctx, client)
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeBound)
	defer cancel()
	return errors.Join(err, client.Close(closing))
}

func (m *leasesMeter) hold(ctx context.Context, client *pglock.Client) error {
	leases := make([]*pglock.Lease, len(m.ttls))
	errs := make([]error, len(m.ttls))
	var all sync.WaitGroup
	for i, ttl := range m.ttls {
		all.Go(func() { leases[i], errs[i] = client.TryAcquire(ctx, fmt.Sprintf("name-%d", i), pglock.WithTTL(ttl)) })
	}
	all.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	select {
	case <-time.After(m.rest):
	case <-ctx.Done():
		return ctx.Err()
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
	m.statements = max(m.transactions(ctx)-transactions-looks, 0) / took.Seconds()
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

// transactions returns the number of commits on the server, except its own. Commits that backends have
// not reported yet are missing, which is little over minutes.
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
