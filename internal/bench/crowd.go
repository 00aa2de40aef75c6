package main

import (
	"context"
	"time"

	"github.com/pglock/pglock-go/internal/bench/trial"
)

// crowdMeter counts how often many goroutines get something done, and the WAL that is
// written meanwhile.
type crowdMeter struct {
	lab *lab
	op  func(ctx context.Context) error

	rate trial.Rate
	wal  float64
}

func (m *crowdMeter) Turn(ctx context.Context, d time.Duration) error {
	bytes, err := m.lab.written(ctx, func() error {
		began := time.Now()
		n, err := trial.Crowd(ctx, tryCrowd, d, m.op)
		m.rate.Add(n, time.Since(began))
		return err
	})
	m.wal += bytes
	return err
}

func (m *crowdMeter) Figures() []trial.Figure {
	wal := trial.Figure{Name: "WAL", Unit: trial.Bytes, Value: m.wal}
	m.wal = 0
	return []trial.Figure{m.rate.Figure("tries"), wal}
}
