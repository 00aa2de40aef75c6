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
	spread := target("p99 to p50", "gap p99", kindOurs, kindOurs, trial.AtMost(3))
	spread.Against.Figure = "gap p50"
	return trial.Row{
		Number: "B10", What: fmt.Sprintf("%d waiters on one name, one process", manyWaiters), Prepare: r.prepare(nil),
		Subjects: []trial.Subject{{Name: kindOurs, Role: trial.Ours, Open: func(ctx context.Context, s *trial.Scope) (trial.Meter, error) {
			client, err := r.client(ctx, s, "pglock")
			waiters, length := pick(s.Scale, manyWaiters, manyWaiters, 50), pick(s.Scale, 2*time.Second, 500*time.Millisecond, time.Millisecond)
			return &turnMeter{turn: func(ctx context.Context, _ time.Duration) ([]trial.Figure, error) {
				return r.wait(ctx, client, waiters, length)
			}}, err
		}}},
		Targets: []trial.Target{
			target("connections", "connections", kindOurs, "", trial.AtMost(3).InEveryRound()),
			target("memory, in bytes", "memory", kindOurs, "", trial.AtMost(5e6)),
			target("p50 of the gap, in us", "gap p50", kindOurs, "", trial.AtMost(500)),
			spread,
		},
		Throughput: true,
	}
}

// wait makes all goroutines wait behind one holder, measures what this costs for some time, and then
// lets each have the lock once.
func (l *lab) wait(ctx context.Context, client *pglock.Client, waiters int, length time.Duration) ([]trial.Figure, error) {
	held, err := client.Acquire(ctx, "hot")
	if err != nil {
		return nil, err
	}
	gaps := trial.NewLatencies()
	before := inUse()
	var mu sync.Mutex
	var freed time.Time
	var all errgroup.Group
	for range waiters {
		all.Go(func() error {
			lease, err := client.Acquire(ctx, "hot")
			if err != nil {
				return err
			}
			now := time.Now()
			mu.Lock()
			gaps.Record(now.Sub(freed))
			freed = time.Now()
			mu.Unlock()
			return lease.Release(ctx)
		})
	}
	memory, connections := 0.0, 0.0
	for deadline := time.Now().Add(length); err == nil && time.Now().Before(deadline); {
		memory = max(memory, inUse()-before)
		var now float64
		now, err = l.connections(ctx)
		connections = max(connections, now)
	}
	mu.Lock()
	freed = time.Now()
	mu.Unlock()
	err = errors.Join(err, held.Release(ctx), all.Wait())
	return append(gaps.Figures("gap"),
		trial.Figure{Name: "connections", Unit: trial.Count, Value: connections},
		trial.Figure{Name: "memory", Unit: trial.Bytes, Value: memory}), err
}

// inUse returns the bytes of heap and stacks that are in use.
func inUse() float64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapInuse + m.StackInuse)
}
