package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/pglock/pglock-go/internal/bench/trial"
)

// The crowds of processes that want one name.
const (
	fewProcesses  = 4
	manyProcesses = 16
)

// hotRow is P3: processes that want the same name, each one again as soon as it has freed it.
func hotRow() trial.Row {
	r := &hotLab{}
	row := trial.Row{
		Number:  "P3",
		What:    "hot name, gap from the release to the next process",
		Prepare: r.prepare,
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
	for n, most := range map[int]float64{fewProcesses: 700, manyProcesses: 900} {
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
	address, err := r.address(ctx, s, kind)
	if err != nil {
		return nil, err
	}
	m := &hotMeter{gaps: trial.NewLatencies(), counts: make([]int, n)}
	for range n {
		w, err := hire(s, kind, address)
		if err != nil {
			return nil, fmt.Errorf("a worker for %s: %w", kind, err)
		}
		m.workers = append(m.workers, w)
	}
	return m, nil
}

type hotMeter struct {
	workers []*worker
	gaps    *trial.Latencies
	counts  []int
	took    time.Duration
	passed  int
}

// Turn has all workers begin at the same moment.
func (m *hotMeter) Turn(_ context.Context, d time.Duration) error {
	from := time.Now().Add(5 * time.Millisecond)
	to := from.Add(max(d, crowdTurn))
	for _, w := range m.workers {
		if err := w.start(from, to); err != nil {
			return err
		}
	}
	type holder struct {
		holding
		worker int
	}
	var all []holder
	for i, w := range m.workers {
		held, err := w.held()
		if err != nil {
			return err
		}
		m.counts[i] += len(held)
		for _, h := range held {
			all = append(all, holder{h, i})
		}
	}
	slices.SortFunc(all, func(a, b holder) int { return cmp.Compare(a.Acquired, b.Acquired) })
	for i := 1; i < len(all); i++ {
		if all[i].worker != all[i-1].worker { // passed on
			m.gaps.Record(time.Duration(all[i].Acquired - all[i-1].Freed))
			m.passed++
		}
	}
	if m.passed == 0 {
		m.gaps.Record(max(d, crowdTurn)) // nobody else came in all that time
	}
	m.took += max(d, crowdTurn)
	return nil
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
