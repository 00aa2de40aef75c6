package main

import (
	"context"
	"fmt"
	"math/rand/v2"
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

// turn is the meter of a row whose rounds have one turn. It returns the figures of that turn.
type turn func(ctx context.Context, d time.Duration) ([]trial.Figure, error)

// turnMeter keeps the figures of the last turn.
type turnMeter struct {
	turn
	figures []trial.Figure
}

func (m *turnMeter) Figures() []trial.Figure { return m.figures }

func (m *turnMeter) Turn(ctx context.Context, d time.Duration) (err error) {
	m.figures, err = m.turn(ctx, d)
	return err
}

// op is an operation on a lock or on a row that has its name.
type op func(ctx context.Context, name string) error

// pair is an acquire and a release.
func pair(acquire func(ctx context.Context, name string) (*pglock.Lease, error)) op {
	return func(ctx context.Context, name string) error {
		l, err := acquire(ctx, name)
		if err != nil {
			return err
		}
		return l.Release(ctx)
	}
}

// acquirePair is a pair on a client's plain locks.
func acquirePair(client *pglock.Client) op {
	return pair(func(ctx context.Context, name string) (*pglock.Lease, error) { return client.Acquire(ctx, name) })
}

// timedMeter times operations, one after the other.
type timedMeter struct {
	what string
	name func() string
	do   op
	took *trial.Latencies
}

func timed(what string, do op) trial.Meter {
	return &timedMeter{what: what, name: inTurn(), do: do, took: trial.NewLatencies()}
}

func (m *timedMeter) Turn(ctx context.Context, d time.Duration) error {
	_, err := trial.Repeat(ctx, d, func(ctx context.Context) error {
		name := m.name()
		began := time.Now()
		if err := m.do(ctx, name); err != nil {
			return err
		}
		m.took.Record(time.Since(began))
		return nil
	})
	return err
}

func (m *timedMeter) Figures() []trial.Figure { return m.took.Figures(m.what) }

// statements opens a meter that times prepared statements with a name as their parameter, on a pool like
// that of a client.
func (l *lab) statements(what string, statements ...string) trial.Open {
	return func(ctx context.Context, s *trial.Scope) (trial.Meter, error) {
		pool, err := l.connect(ctx, s, fewConns)
		return timed(what, func(ctx context.Context, name string) error {
			for _, statement := range statements {
				if _, err := pool.Exec(ctx, statement, name); err != nil {
					return err
				}
			}
			return nil
		}), err
	}
}

// crowdTurn is the least length of a turn of many goroutines or processes. In a shorter one some of them
// would end no operation.
const crowdTurn = 200 * time.Millisecond

// crowd counts the operations of many goroutines, each with a name of its own, and the WAL that they write
// on the server of wal, if that is not nil.
func crowd(goroutines int, figure string, wal *lab, do op) trial.Meter {
	var names []string
	for i := range goroutines {
		names = append(names, fmt.Sprint("name-", i))
	}
	return &turnMeter{turn: func(ctx context.Context, d time.Duration) (figures []trial.Figure, err error) {
		d = max(d, crowdTurn)
		work := func() error {
			n, err := trial.Crowd(ctx, goroutines, trial.Lead(d), d, func(ctx context.Context, i int) error { return do(ctx, names[i]) })
			figures = []trial.Figure{trial.PerTime(figure, n, d)}
			return err
		}
		if wal == nil {
			return figures, work()
		}
		bytes, err := wal.written(ctx, work)
		return append(figures, trial.Figure{Name: "WAL", Unit: trial.Bytes, Value: bytes}), err
	}}
}

// pairNames is the number of names where it does not matter: enough that a name rests between two
// grants.
const pairNames = 100

// inTurn cycles through pairNames names, which it makes in advance.
func inTurn() func() string {
	all := make([]string, pairNames)
	for i := range all {
		all[i] = fmt.Sprintf("name-%d", i)
	}
	next := -1
	return func() string {
		next = (next + 1) % len(all)
		return all[next]
	}
}

// atRandom returns a random one of n names.
func atRandom(n int) func() string {
	return func() string { return fmt.Sprintf("name-%d", rand.IntN(n)) }
}

// alwaysNew never returns a name twice.
func alwaysNew() func() string {
	serial := 0
	return func() string {
		serial++
		return fmt.Sprintf("new-%d", serial)
	}
}
