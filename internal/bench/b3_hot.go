package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/pglock/pglock-go/internal/bench/trial"
)

// The numbers of processes that compete for one name.
const (
	fewProcesses  = 4
	manyProcesses = 16
)

// hotRow is B3: processes compete for one name, and each acquires it again as soon as it has released
// it.
func hotRow() trial.Row {
	r := &hotLab{}
	row := trial.Row{
		Number:  "B3",
		What:    "hot name, gap from the release to the next process",
		Prepare: r.prepare,

		Throughput: true,
	}
	name := func(kind string, n int) string { return fmt.Sprintf("%s, %d processes", kind, n) }
	add := func(kind string, role trial.Role, crowds ...int) {
		for _, n := range crowds {
			row.Subjects = append(row.Subjects, trial.Subject{Name: name(kind, n), Role: role,
				Open: func(ctx context.Context, s *trial.Scope) (trial.Meter, error) { return r.processes(ctx, s, kind, n) }})
		}
	}
	add(kindOurs, trial.Ours, fewProcesses, manyProcesses)
	add(kindPolling, trial.Ours, fewProcesses)
	add(kindAdvisory, trial.Floor, fewProcesses, manyProcesses)
	add(kindEtcd, trial.Peer, fewProcesses, manyProcesses)
	add(kindRedis, trial.Peer, manyProcesses)
	add(kindRedsync, trial.Peer, manyProcesses)
	add(kindNaive, trial.Peer, manyProcesses)
	add(kindGoose, trial.Peer, fewProcesses)
	for n, most := range map[int]float64{fewProcesses: 900, manyProcesses: 1100} {
		ours := func(figure string) []trial.Ref { return []trial.Ref{{Subject: name(kindOurs, n), Figure: figure}} }
		row.Targets = append(row.Targets,
			trial.Target{What: fmt.Sprintf("p50 of the gap, %d processes, in us", n), Ours: ours("gap p50"), Rule: trial.AtMost(most)},
			trial.Target{What: "p99 to p50", Ours: ours("gap p99"), Against: ours("gap p50")[0], Rule: trial.AtMost(3)},
			trial.Target{What: "slowest process to fastest", Ours: ours("fairness"), Rule: trial.AtLeast(0.9)},
			trial.Target{What: "p50 to that of etcd", Ours: ours("gap p50"),
				Against: trial.Ref{Subject: name(kindEtcd, n), Figure: "gap p50"}, Rule: trial.AtMost(0.5)})
	}
	slices.SortStableFunc(row.Targets, func(a, b trial.Target) int { return -cmp.Compare(a.Ours[0].Subject, b.Ours[0].Subject) })
	return row
}

type hotLab struct{ distinctLab }

func (r *hotLab) processes(ctx context.Context, s *trial.Scope, kind string, n int) (trial.Meter, error) {
	workers, err := r.hireAll(ctx, s, kind, n)
	return &hotMeter{workers: workers, gaps: trial.NewLatencies(), counts: make([]int, n)}, err
}

// hireAll starts n processes with a kind of lock.
func (r *hotLab) hireAll(ctx context.Context, s *trial.Scope, kind string, n int) ([]*worker, error) {
	address, err := r.address(ctx, s, kind)
	if err != nil {
		return nil, err
	}
	workers := make([]*worker, n)
	for i := range workers {
		if workers[i], err = hire(s, kind, address); err != nil {
			return nil, fmt.Errorf("a worker for %s: %w", kind, err)
		}
	}
	return workers, nil
}

type hotMeter struct {
	workers []*worker
	gaps    *trial.Latencies
	counts  []int
	took    time.Duration
	passed  int
}

// Turn lets all workers begin at the same moment, and counts what they do after the warm-up.
func (m *hotMeter) Turn(_ context.Context, d time.Duration) error {
	d = max(d, crowdTurn)
	begin := time.Now().Add(5 * time.Millisecond)
	from := begin.Add(trial.Lead(d))
	to := from.Add(d)
	byWorker, err := workTogether(m.workers, begin, to)
	if err != nil {
		return err
	}
	all := within(inOrder(byWorker), from, to)
	passed := 0
	for i, h := range all {
		m.counts[h.by]++
		if i > 0 && h.by != all[i-1].by {
			m.gaps.Record(time.Duration(h.Acquired - all[i-1].Freed))
			passed++
		}
	}
	if passed == 0 {
		m.gaps.Record(d) // nobody else came in all that time
	}
	m.passed += passed
	m.took += d
	return nil
}

// workTogether lets all workers work from one moment to another. It returns the times at which each
// held the lock.
func workTogether(workers []*worker, from, to time.Time) ([][]holding, error) {
	for _, w := range workers {
		if err := w.start(from, to); err != nil {
			return nil, err
		}
	}
	byWorker := make([][]holding, len(workers))
	for i, w := range workers {
		var err error
		if byWorker[i], err = w.held(); err != nil {
			return nil, err
		}
	}
	return byWorker, nil
}

// heldBy is a time at which a member of a crowd held the lock.
type heldBy struct {
	holding
	by int
}

// inOrder returns all times at which members held the lock, the earliest first.
func inOrder(byMember [][]holding) []heldBy {
	var all []heldBy
	for i, held := range byMember {
		for _, h := range held {
			all = append(all, heldBy{h, i})
		}
	}
	slices.SortFunc(all, func(a, b heldBy) int { return cmp.Compare(a.Acquired, b.Acquired) })
	return all
}

// within returns the times that began in a half-open interval.
func within(all []heldBy, from, to time.Time) []heldBy {
	return slices.DeleteFunc(all, func(h heldBy) bool { return h.Acquired < from.UnixNano() || h.Acquired >= to.UnixNano() })
}

func (m *hotMeter) Figures() []trial.Figure {
	fairness := 0.0
	if most := slices.Max(m.counts); most > 0 {
		fairness = float64(slices.Min(m.counts)) / float64(most)
	}
	figures := append(m.gaps.Figures("gap"),
		trial.Figure{Name: "fairness", Unit: trial.Times, Value: fairness},
		trial.Figure{Name: "passed on", Unit: trial.PerSecond, Value: float64(m.passed) / m.took.Seconds()})
	clear(m.counts)
	m.took, m.passed = 0, 0
	return figures
}
