package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/pglock/pglock-go/internal/bench/trial"
	"github.com/pglock/pglock-go/pglock"
)

// manyWaiters is how many goroutines want one name.
const manyWaiters = 1000

// waitersRow is B10: the cost of waiting in one process.
func waitersRow() trial.Row {
	r := &lab{}
	ours := func(what, figure string, rule trial.Rule) trial.Target {
		return target(what, figure, kindOurs, "", rule)
	}
	spread := target("p99 to p50", "gap p99", kindOurs, kindOurs, trial.AtMost(3))
	spread.Against.Figure = "gap p50"
	return trial.Row{
		Number: "B10", What: fmt.Sprintf("%d waiters on one name, one process", manyWaiters), Prepare: r.prepare(nil),
		Subjects: []trial.Subject{{Name: kindOurs, Role: trial.Ours, Open: func(ctx context.Context, s *trial.Scope) (trial.Meter, error) {
			client, err := r.client(ctx, s, "pglock")
			return &waitersMeter{
				lab: r, client: client, gaps: trial.NewLatencies(), waiters: pick(s.Scale, manyWaiters, manyWaiters, 50),
				time: pick(s.Scale, 2*time.Second, 500*time.Millisecond, time.Millisecond),
			}, err
		}}},
		Targets: []trial.Target{
			ours("connections", "connections", trial.AtMost(3).InEveryRound()),
			ours("memory, in bytes", "memory", trial.AtMost(10e6)),
			ours("p50 of the gap, in us", "gap p50", trial.AtMost(700)),
			spread,
		},
		Throughput: true,
	}
}

type waitersMeter struct {
	lab    *lab
	client *pglock.Client

	waiters int
	time    time.Duration // in which the cost of waiting is measured

	gaps                *trial.Latencies
	memory, connections float64
}

// Turn makes all goroutines wait behind one holder, measures the cost, and then lets each have the
// lock once.
func (m *waitersMeter) Turn(ctx context.Context, _ time.Duration) error {
	held, err := m.client.Acquire(ctx, "hot")
	if err != nil {
		return err
	}
	before := inUse()
	var mu sync.Mutex
	var freed time.Time
	var all errgroup.Group
	for range m.waiters {
		all.Go(func() error {
			l, err := m.client.Acquire(ctx, "hot")
			if err != nil {
				return err
			}
			now := time.Now()
			mu.Lock()
			m.gaps.Record(now.Sub(freed))
			freed = time.Now()
			mu.Unlock()
			return l.Release(ctx)
		})
	}
	for deadline := time.Now().Add(m.time); err == nil && time.Now().Before(deadline); {
		m.memory = max(m.memory, inUse()-before)
		var connections float64
		connections, err = m.lab.connections(ctx)
		m.connections = max(m.connections, connections)
	}
	mu.Lock()
	freed = time.Now()
	mu.Unlock()
	return errors.Join(err, held.Release(ctx), all.Wait())
}

// inUse returns the bytes of heap and stacks that are in use.
func inUse() float64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapInuse + m.StackInuse)
}

func (m *waitersMeter) Figures() []trial.Figure {
	figures := append(m.gaps.Figures("gap"),
		trial.Figure{Name: "connections", Unit: trial.Count, Value: m.connections},
		trial.Figure{Name: "memory", Unit: trial.Bytes, Value: m.memory})
	m.memory, m.connections = 0, 0
	return figures
}
