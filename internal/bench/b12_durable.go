package main

import (
	"fmt"

	"github.com/pglock/pglock-go/internal/bench/trial"
)

// durableCrowds are the numbers of callers.
var durableCrowds = []int{1, 64}

// durableRow is B12: the cost of a pair of acquire and release where every grant survives a crash. It is
// the same program on each kind of lock. It has no target: it shows what people compare first.
func durableRow() trial.Row {
	r := &distinctLab{}
	row := trial.Row{
		Number: "B12", What: "acquire+release of distinct names, every grant durable", Prepare: r.prepare, Throughput: true,
	}
	for _, n := range durableCrowds {
		name := func(kind string) string { return fmt.Sprintf("%s, %d callers", kind, n) }
		row.Subjects = append(row.Subjects, trial.Subject{Name: name(kindOurs), Role: trial.Ours, Open: r.crowd(kindOurs, n, n)})
		for _, kind := range []string{kindDurableRedis, kindEtcd} {
			row.Subjects = append(row.Subjects, trial.Subject{Name: name(kind), Role: trial.Peer, Open: r.crowd(kind, n, n)})
			row.Targets = append(row.Targets, trial.Target{
				What: fmt.Sprintf("cost of a pair to that of %s, %d callers", kind, n),
				Ours: []trial.Ref{{Subject: name(kindOurs), Figure: "cost of a pair"}}, Against: trial.Ref{Subject: name(kind), Figure: "cost of a pair"},
				Rule: trial.NoBound(),
			})
		}
	}
	return row
}
