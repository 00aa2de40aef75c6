package main

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/bench/trial"
)

// floorMeter times prepared statements about a name, one after the other.
type floorMeter struct {
	pool       *pgxpool.Pool
	figure     string
	name       func() string
	statements []string
	took       *trial.Latencies
}

// floor measures the statements on a pool like a client's.
func (l *lab) floor(ctx context.Context, s *trial.Scope, figure string, name func() string, statements ...string) (trial.Meter, error) {
	pool, err := l.connect(ctx, s, fewConns)
	if err != nil {
		return nil, err
	}
	return &floorMeter{pool: pool, figure: figure, name: name, statements: statements, took: trial.NewLatencies()}, nil
}

func (m *floorMeter) Turn(ctx context.Context, d time.Duration) error {
	_, err := trial.Repeat(ctx, d, func(ctx context.Context) error {
		name := m.name()
		began := time.Now()
		for _, statement := range m.statements {
			if _, err := m.pool.Exec(ctx, statement, name); err != nil {
				return err
			}
		}
		m.took.Record(time.Since(began))
		return nil
	})
	return err
}

func (m *floorMeter) Figures() []trial.Figure { return m.took.Figures(m.figure) }
