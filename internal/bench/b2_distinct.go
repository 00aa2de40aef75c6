package main

import (
	"context"
	"fmt"

	"github.com/pglock/pglock-go/internal/bench/trial"
)

// distinctCrowd is the number of goroutines, each with names of its own.
const distinctCrowd = 256

// distinctRow is B2: acquire and release of names without competition, by many goroutines at once.
func distinctRow() trial.Row {
	r := &distinctLab{}
	subject := func(kind string, role trial.Role, conns int) trial.Subject {
		return trial.Subject{Name: kind, Role: role, Open: r.crowd(kind, distinctCrowd, conns)}
	}
	against := func(kind string, least float64) trial.Target {
		return trial.Target{
			What: "pairs a second to those of " + kind,
			Ours: []trial.Ref{{Subject: kindOurs, Figure: "pairs"}}, Against: trial.Ref{Subject: kind, Figure: "pairs"},
			Rule: trial.AtLeast(least),
		}
	}
	redis, busy := against(kindRedis, 1.7), trial.AtLeast(1.2)
	redis.Busy = &busy
	return trial.Row{
		Number:  "B2",
		What:    fmt.Sprintf("acquire+release of distinct names, %d goroutines, one client", distinctCrowd),
		Prepare: r.prepare,
		Subjects: []trial.Subject{
			subject(kindOurs, trial.Ours, 0),
			subject(kindSingle, trial.Floor, 64),
			subject(kindRedis, trial.Peer, 64),
			subject(kindRedsync, trial.Peer, 64),
			subject(kindEtcd, trial.Peer, 0),
		},
		Targets: []trial.Target{redis, against(kindSingle, 6), against(kindEtcd, 10)},

		Throughput: true,
	}
}

// distinctLab has the servers of all kinds.
type distinctLab struct {
	lab
	peerServers
}

func (r *distinctLab) prepare(ctx context.Context, s *trial.Scope) error {
	if err := r.lab.prepare(ctx, s, livelySettings); err != nil {
		return err
	}
	if err := r.migrate(ctx, "pglock"); err != nil {
		return err
	}
	r.peerServers = peerServers{postgres: r.server.URL()}
	return r.exec(ctx, createNaive)
}

// peerServers are started when the first subject needs them.
type peerServers struct{ postgres, redis, durableRedis, etcd string }

func (p *peerServers) address(ctx context.Context, s *trial.Scope, kind string) (_ string, err error) {
	switch kind {
	case kindRedis, kindRedsync:
		if p.redis == "" {
			p.redis, err = startRedis(ctx, s, "--appendonly", "no")
		}
		return p.redis, err
	case kindDurableRedis:
		if p.durableRedis == "" {
			p.durableRedis, err = startRedis(ctx, s, "--appendonly", "yes", "--appendfsync", "always")
		}
		return p.durableRedis, err
	case kindEtcd:
		if p.etcd == "" {
			p.etcd, err = startEtcd(ctx, s)
		}
		return p.etcd, err
	}
	return p.postgres, nil
}

// crowd opens a kind of lock for n goroutines.
func (r *distinctLab) crowd(kind string, n, conns int) func(context.Context, *trial.Scope) (trial.Meter, error) {
	return func(ctx context.Context, s *trial.Scope) (trial.Meter, error) {
		address, err := r.address(ctx, s, kind)
		if err != nil {
			return nil, err
		}
		l, err := openLocker(ctx, kind, address, conns)
		if err != nil {
			return nil, err
		}
		s.Defer(func() error { l.close(); return nil })
		return &pairsMeter{goroutines: n, pair: func(ctx context.Context, name string) error {
			unlock, err := l.lock(ctx, name)
			if err != nil {
				return err
			}
			return unlock(ctx)
		}}, nil
	}
}
