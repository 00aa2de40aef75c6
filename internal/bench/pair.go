package main

import (
	"context"
	"time"

	"github.com/pglock/pglock-go/internal/bench/trial"
	"github.com/pglock/pglock-go/pglock"
)

// pairMeter measures pairs of acquire and release, one after the other.
type pairMeter struct {
	lab    *lab
	client *pglock.Client
	name   func() string                   // of the next lock
	before func(ctx context.Context) error // each turn, not measured; may be nil

	pairs            int
	wal              float64
	both             *trial.Latencies
	acquire, release *trial.Latencies
}

func newPairMeter(l *lab, client *pglock.Client, name func() string) *pairMeter {
	return &pairMeter{
		lab: l, client: client, name: name,
		both: trial.NewLatencies(), acquire: trial.NewLatencies(), release: trial.NewLatencies(),
	}
}

func (m *pairMeter) Turn(ctx context.Context, d time.Duration) error {
	if m.before != nil {
		if err := m.before(ctx); err != nil {
			return err
		}
	}
	bytes, err := m.lab.written(ctx, func() error {
		n, err := trial.Repeat(ctx, d, m.pair)
		m.pairs += n
		return err
	})
	m.wal += bytes
	return err
}

func (m *pairMeter) pair(ctx context.Context) error {
	name := m.name()
	began := time.Now()
	lease, err := m.client.Acquire(ctx, name)
	if err != nil {
		return err
	}
	held := time.Now()
	if err := lease.Release(ctx); err != nil {
		return err
	}
	freed := time.Now()
	m.both.Record(freed.Sub(began))
	m.acquire.Record(held.Sub(began))
	m.release.Record(freed.Sub(held))
	return nil
}

func (m *pairMeter) Figures() []trial.Figure {
	wal := trial.Figure{Name: "WAL per pair", Unit: trial.Bytes, Value: m.wal / float64(m.pairs)}
	m.pairs, m.wal = 0, 0
	figures := append(m.both.Figures("pair"), m.acquire.Figures("acquire")...)
	return append(append(figures, m.release.Figures("release")...), wal)
}
