package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/pglock/pglock-go/internal/backoff"
	"github.com/pglock/pglock-go/internal/bench/trial"
	"github.com/pglock/pglock-go/pglock"
)

const (
	manyLeases = 10_000
	leaseTTL   = 30 * time.Second
	leaseTime  = 90 * time.Second // nine renewals of each

	// reportTime bounds the time after which an idle backend reports its commits.
	reportTime = 10 * time.Second
)

// leasesRow is B5: the cost of holding leases. A quick run takes a renewal of each lease, and a short one
// has fewer leases with a shorter TTL.
func leasesRow() trial.Row {
	r := &lab{}
	return trial.Row{
		Number:  "B5",
		What:    fmt.Sprintf("%d live leases in one process, TTL %v, for %v", manyLeases, leaseTTL, leaseTime),
		Prepare: r.prepare(nil),
		Subjects: []trial.Subject{{Name: kindOurs, Role: trial.Ours, Open: func(_ context.Context, s *trial.Scope) (trial.Meter, error) {
			m := leasesMeter{
				lab: r, leases: pick(s.Scale, manyLeases, manyLeases, 200), ttl: pick(s.Scale, leaseTTL, leaseTTL, time.Second),
				rest: pick(s.Scale, reportTime, reportTime, 0), time: pick(s.Scale, leaseTime, leaseTTL/2, time.Second),
			}
			return &turnMeter{turn: m.turn}, nil
		}}},
		Targets: []trial.Target{
			target("leases lost", "lost", kindOurs, "", trial.AtMost(0).InEveryRound()),
			target("statements a second", "statements", kindOurs, "", trial.AtMost(2)),
			target("percent of a core", "processor", kindOurs, "", trial.AtMost(5)),
			target("connections", "connections", kindOurs, "", trial.AtMost(3).InEveryRound()),
		},
		Once: true,
	}
}

// leasesMeter holds so many leases for a time. rest is the time until what acquiring took is reported, and
// not counted any more.
type leasesMeter struct {
	*lab
	leases          int
	ttl, rest, time time.Duration
}

// turn opens a client and closes it, because an idle client would be counted, too.
func (m leasesMeter) turn(ctx context.Context, _ time.Duration) ([]trial.Figure, error) {
	client, err := pglock.Open(ctx, m.pool)
	if err != nil {
		return nil, err
	}
	figures, err := m.hold(ctx, client)
	return figures, errors.Join(err, closeClient(client))
}

func (m leasesMeter) hold(ctx context.Context, client *pglock.Client) ([]trial.Figure, error) {
	leases := make([]*pglock.Lease, m.leases)
	var all errgroup.Group
	for i := range leases {
		all.Go(func() (err error) {
			leases[i], err = client.TryAcquire(ctx, fmt.Sprintf("name-%d", i), pglock.WithTTL(m.ttl))
			return err
		})
	}
	if err := errors.Join(all.Wait(), backoff.Sleep(ctx, m.rest)); err != nil {
		return nil, err
	}
	began, used := time.Now(), processorTime()
	before, err := m.transactions(ctx)
	looks, connections := 0.0, 0.0
	for ; err == nil && time.Since(began) < m.time; looks++ {
		var now float64
		now, err = m.connections(ctx)
		connections = max(connections, now)
		err = errors.Join(err, backoff.Sleep(ctx, m.time/20))
	}
	if err != nil {
		return nil, err
	}
	took := time.Since(began).Seconds()
	processor := (processorTime() - used).Seconds()
	after, err := m.transactions(ctx)
	lost := 0.0
	for _, l := range leases {
		if l.Err() != nil {
			lost++
		}
	}
	return []trial.Figure{
		{Name: "lost", Unit: trial.Count, Value: lost},
		{Name: "statements", Unit: trial.PerSecond, Value: max(after-before-looks, 0) / took},
		{Name: "processor", Unit: trial.Percent, Value: 100 * processor / took},
		{Name: "connections", Unit: trial.Count, Value: connections},
	}, err
}

// transactions returns the number of commits on the server, except its own. Commits that backends have
// not reported yet are missing, which is little over minutes.
func (m leasesMeter) transactions(ctx context.Context) (n float64, err error) {
	err = m.pool.QueryRow(ctx, "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()").Scan(&n)
	return n, err
}
