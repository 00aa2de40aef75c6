package main

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/pglock/pglock-go/internal/bench/trial"
	"github.com/pglock/pglock-go/pglock"
)

// manyWaiters is how many goroutines want one name, and shortWaiters in a short run.
const (
	manyWaiters  = 1000
	shortWaiters = 50

	// waitersTime is how long the cost of waiting is measured.
	waitersTime      = 2 * time.Second
	quickWaitersTime = 500 * time.Millisecond
)

// waitersRow is B10: the cost of waiting in one process.
func waitersRow() trial.Row {
	r := &waitersLab{}
	ours := func(figure string) []trial.Ref { return []trial.Ref{{Subject: "pglock", Figure: figure}} }
	return trial.Row{
		Number:   "B10",
		What:     fmt.Sprintf("%d waiters on one name, one process", manyWaiters),
		Prepare:  r.prepare,
		Subjects: []trial.Subject{{Name: "pglock", Role: trial.Ours, Open: r.waiters}},
		Targets: []trial.Target{
			{What: "connections", Ours: ours("connections"), Rule: trial.AtMost(3).InEveryRound()},
			{What: "memory, in bytes", Ours: ours("memory"), Rule: trial.AtMost(10e6)},
			{What: "p50 of the gap, in us", Ours: ours("gap p50"), Rule: trial.AtMost(700)},
			{What: "p99 to p50", Ours: ours("gap p99"), Against: ours("gap p50")[0], Rule: trial.AtMost(3)},
		},
		Throughput: true,
		Estimate: func(s trial.Scale) time.Duration {
			return 5*time.Second + time.Duration(s.Rounds+1)*waiting(s)
		},
	}
}

type waitersLab struct{ lab }

func (r *waitersLab) prepare(ctx context.Context, s *trial.Scope) error {
	if err := r.lab.prepare(ctx, s, nil); err != nil {
		return err
	}
	return r.migrate(ctx, "pglock")
}

func (r *waitersLab) waiters(ctx context.Context, s *trial.Scope) (trial.Meter, error) {
	client, err := r.client(ctx, s, "pglock")
	if err != nil {
		return nil, err
	}
	waiters := manyWaiters
	if s.Short {
		waiters = shortWaiters
	}
	return &waitersMeter{lab: &r.lab, client: client, waiters: waiters, time: waiting(s.Scale), gaps: trial.NewLatencies()}, nil
}

// waiting returns how long the cost of waiting is measured.
func waiting(s trial.Scale) time.Duration {
	switch {
	case s.Short:
		return time.Millisecond
	case s.Quick:
		return quickWaitersTime
	}
	return waitersTime
}

type waitersMeter struct {
	lab    *lab
	client *pglock.Client

	waiters int
	time    time.Duration

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
	var failure error
	var all sync.WaitGroup
	for range m.waiters {
		all.Go(func() {
			l, err := m.client.Acquire(ctx, "hot")
			now := time.Now()
			mu.Lock()
			if err != nil {
				failure = err
				mu.Unlock()
				return
			}
			m.gaps.Record(now.Sub(freed))
			freed = time.Now()
			mu.Unlock()
			if err := l.Release(ctx); err != nil {
				mu.Lock()
				failure = err
				mu.Unlock()
			}
		})
	}
	for deadline := time.Now().Add(m.time); time.Now().Before(deadline); {
		m.memory = max(m.memory, inUse()-before)
		var connections float64
		if err := m.lab.pool.QueryRow(ctx, "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE '%pglock%' AND datname = current_database()").Scan(&connections); err != nil {
			return err
		}
		m.connections = max(m.connections, connections)
	}
	freed = time.Now()
	if err := held.Release(ctx); err != nil {
		return err
	}
	all.Wait()
	return failure
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
