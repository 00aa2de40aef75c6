package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/pglock/pglock-go/internal/bench/trial"
	"github.com/pglock/pglock-go/pglock"
)

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

// timedMeter times operations, one after the other, without what undoes each of them.
type timedMeter struct {
	what string
	name func() string
	do   lockFunc
	took *trial.Latencies
}

// timed times an operation that nothing undoes.
func timed(what string, do op) trial.Meter {
	nothing := func(context.Context) error { return nil }
	return timedLock(what, inTurn(), func(ctx context.Context, name string) (unlockFunc, error) { return nothing, do(ctx, name) })
}

func timedLock(what string, name func() string, lock lockFunc) trial.Meter {
	return &timedMeter{what, name, lock, trial.NewLatencies()}
}

func (m *timedMeter) Turn(ctx context.Context, d time.Duration) error {
	for end := time.Now().Add(d); time.Now().Before(end); {
		name := m.name()
		began := time.Now()
		undo, err := m.do(ctx, name)
		if err != nil {
			return err
		}
		m.took.Record(time.Since(began))
		if err := undo(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (m *timedMeter) Figures() []trial.Figure { return m.took.Figures(m.what) }

// pairs opens a client of which a goroutine repeats an operation.
func (l *lab) pairs(do func(client *pglock.Client) op, opts ...pglock.Option) trial.Open {
	return func(ctx context.Context, s *trial.Scope) (trial.Meter, error) {
		client, err := l.client(ctx, s, "pglock", opts...)
		return timed("pair", do(client)), err
	}
}

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
			n, err := trial.Crowd(ctx, goroutines, d/2, d, func(ctx context.Context, i int) error { return do(ctx, names[i]) })
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
