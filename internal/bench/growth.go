package main

import (
	"context"
	"fmt"
	"time"

	"github.com/pglock/pglock-go/internal/bench/trial"
)

// namesRow is the cost of an acquire by the number of names in the table. B6 has the target.
func namesRow() trial.Row {
	r := &millionLab{}
	sizes := []int{1, 1000, 100_000, manyNames}
	row := trial.Row{
		Number: "G1", What: "acquire, by the number of names known",
		Growth:   &trial.Growth{With: "names known", Figures: []string{"acquire p50", "acquire p99"}},
		Estimate: fillTime,
	}
	row.Prepare = func(ctx context.Context, s *trial.Scope) error {
		if err := r.lab.prepare(ctx, s, nil); err != nil {
			return err
		}
		for _, n := range sizes {
			schema := fmt.Sprint("n", n)
			if err := r.migrate(ctx, schema); err != nil {
				return err
			}
			if s.Short {
				n = min(n, shortNames)
			}
			if err := r.fill(ctx, schema, n); err != nil {
				return err
			}
		}
		return r.exec(ctx, "CHECKPOINT")
	}
	for _, n := range sizes {
		known := func(s *trial.Scope) int {
			if s.Short {
				return min(n, shortNames)
			}
			return n
		}
		row.Subjects = append(row.Subjects, trial.Subject{
			Name: fmt.Sprint(n, " names"), Role: trial.Ours, Size: float64(n), Open: r.knownNames(fmt.Sprint("n", n), known),
		})
	}
	return row
}

// goroutinesRow is the cost of a pair by the number of goroutines in one client.
func goroutinesRow() trial.Row {
	r := &waitersLab{}
	row := trial.Row{
		Number: "G2", What: "acquire+release of distinct names, by the number of goroutines", Prepare: r.lively,
		Growth: &trial.Growth{With: "goroutines", Figures: []string{"cost of a pair"}}, Throughput: true,
	}
	for _, n := range []int{1, 16, 256, 4096} {
		row.Subjects = append(row.Subjects, trial.Subject{
			Name: fmt.Sprint(n, " goroutines"), Role: trial.Ours, Size: float64(n),
			Open: func(ctx context.Context, s *trial.Scope) (trial.Meter, error) {
				client, err := r.client(ctx, s, "pglock")
				if err != nil {
					return nil, err
				}
				m := &pairsMeter{goroutines: n}
				m.pair = func(ctx context.Context, name string) error {
					l, err := client.Acquire(ctx, name)
					if err != nil {
						return err
					}
					return l.Release(ctx)
				}
				return m, nil
			},
		})
	}
	return row
}

// lively prepares the lab with autovacuum every few seconds.
func (r *waitersLab) lively(ctx context.Context, s *trial.Scope) error {
	if err := r.lab.prepare(ctx, s, livelySettings); err != nil {
		return err
	}
	return r.migrate(ctx, "pglock")
}

// crowdTurn is the least length of a turn of many goroutines or processes. In a shorter one some of them
// would end no operation.
const crowdTurn = 200 * time.Millisecond

// pairsMeter lets goroutines lock names without competition.
type pairsMeter struct {
	goroutines int
	pair       func(ctx context.Context, name string) error

	pairs int
	took  time.Duration
}

func (m *pairsMeter) Turn(ctx context.Context, d time.Duration) error {
	names := make(chan string, m.goroutines)
	for i := range m.goroutines {
		names <- fmt.Sprintf("name-%d", i)
	}
	d = max(d, crowdTurn)
	n, err := trial.Crowd(ctx, m.goroutines, trial.Lead(d), d, func(ctx context.Context) error {
		name := <-names // one that nobody uses at the moment
		defer func() { names <- name }()
		return m.pair(ctx, name)
	})
	m.pairs += n
	m.took += d
	return err
}

func (m *pairsMeter) Figures() []trial.Figure {
	cost := float64(m.took.Microseconds()) / float64(m.pairs)
	rate := float64(m.pairs) / m.took.Seconds()
	m.pairs, m.took = 0, 0
	return []trial.Figure{{Name: "cost of a pair", Unit: trial.Micros, Value: cost}, {Name: "pairs", Unit: trial.PerSecond, Value: rate}}
}
