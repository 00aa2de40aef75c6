//go:build !base

package main

import (
	"context"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/pglock/pglock-go/internal/bench/trial"
	"github.com/pglock/pglock-go/pglock/leader"
)

// electionRow is E1: campaign and resignation without another candidate, beside the pair of a plain
// lease and etcd's election. The comparison with etcd has no target.
func electionRow() trial.Row {
	r := &electionLab{}
	pair := func(subject string) trial.Ref { return trial.Ref{Subject: subject, Figure: "pair p50"} }
	target := func(what, against string, rule trial.Rule) trial.Target {
		return trial.Target{What: what, Ours: []trial.Ref{pair("election")}, Against: pair(against), Rule: rule}
	}
	return trial.Row{
		Number:  "E1",
		What:    "campaign+resign without another candidate, with a payload, one goroutine",
		Prepare: r.prepare,
		Subjects: []trial.Subject{
			{Name: "election", Role: trial.Ours, Open: r.election(false)},
			{Name: "election, observed", Role: trial.Ours, Open: r.election(true)},
			{Name: "acquire+release", Role: trial.Floor, Open: r.pairs},
			{Name: "etcd election", Role: trial.Peer, Open: r.etcdElection},
		},
		Targets: []trial.Target{
			target("p50 of a pair to that of acquire+release", "acquire+release", trial.AtMost(1.5)),
			target("p50 of a pair to that of etcd", "etcd election", trial.NoBound()),
		},
	}
}

type electionLab struct {
	pairLab
	peers peerServers
}

// electionPayload is an address, as most leaders proclaim.
const electionPayload = "10.0.0.7:8080"

// election opens the elections of pairNames names, which the client itself observes if observed.
func (r *electionLab) election(observed bool) func(context.Context, *trial.Scope) (trial.Meter, error) {
	return func(ctx context.Context, s *trial.Scope) (trial.Meter, error) {
		client, err := r.client(ctx, s, "pglock")
		if err != nil {
			return nil, err
		}
		name, elections := inTurn(), map[string]*leader.Election{}
		watching, stop := context.WithCancel(context.WithoutCancel(ctx))
		s.Defer(func() error { stop(); return nil })
		for range pairNames {
			n := name()
			e, err := leader.New(client, n)
			if err != nil {
				return nil, err
			}
			elections[n] = e
			if observed {
				go func() {
					for _, err := range e.Observe(watching) {
						if err != nil {
							return // the row is done
						}
					}
				}()
			}
		}
		return &electionMeter{took: trial.NewLatencies(), pair: func(ctx context.Context) error {
			t, err := elections[name()].Campaign(ctx, electionPayload)
			if err != nil {
				return err
			}
			return t.Resign(ctx)
		}}, nil
	}
}

func (r *electionLab) etcdElection(ctx context.Context, s *trial.Scope) (trial.Meter, error) {
	address, err := r.peers.address(ctx, s, kindEtcd)
	if err != nil {
		return nil, err
	}
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{address}, DialTimeout: peerPatience})
	if err != nil {
		return nil, err
	}
	s.Defer(client.Close)
	session, err := concurrency.NewSession(client, concurrency.WithTTL(30), concurrency.WithContext(context.WithoutCancel(ctx)))
	if err != nil {
		return nil, err
	}
	s.Defer(session.Close)
	name := inTurn()
	return &electionMeter{took: trial.NewLatencies(), pair: func(ctx context.Context) error {
		e := concurrency.NewElection(session, "/"+name())
		if err := e.Campaign(ctx, electionPayload); err != nil {
			return err
		}
		return e.Resign(ctx)
	}}, nil
}

// electionMeter measures pairs of campaign and resignation, one after the other.
type electionMeter struct {
	pair func(ctx context.Context) error
	took *trial.Latencies
}

func (m *electionMeter) Turn(ctx context.Context, d time.Duration) error {
	_, err := trial.Repeat(ctx, d, func(ctx context.Context) error {
		began := time.Now()
		if err := m.pair(ctx); err != nil {
			return err
		}
		m.took.Record(time.Since(began))
		return nil
	})
	return err
}

func (m *electionMeter) Figures() []trial.Figure { return m.took.Figures("pair") }
