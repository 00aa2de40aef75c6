package main

import (
	"cmp"
	"context"
	"fmt"
	"sync/atomic"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/bench/trial"
)

// kindOnce is a common form of a lock with a name that is used once: the row is the lock.
const kindOnce = "INSERT and DELETE, a statement each"

// newRow is B17: names that are used once, such as those of orders, beside names that have a row.
func newRow() trial.Row {
	r := &lab{}
	row := trial.Row{
		Number:     "B17",
		What:       "acquire+release of names that are used once, one client",
		Prepare:    r.prepare(livelySettings, createNaive),
		Throughput: true,
	}
	var first string
	for _, c := range []struct {
		callers int
		least   float64 // to known names
	}{{distinctCrowd, 0.7}, {16, 0.7}, {1, 0.75}} {
		fresh, known := fmt.Sprintf("new names, %d callers", c.callers), fmt.Sprintf("known names, %d callers", c.callers)
		row.Subjects = append(row.Subjects,
			trial.Subject{Name: fresh, Role: trial.Ours, Open: r.callers(kindOurs, c.callers, 0, true)},
			trial.Subject{Name: known, Role: trial.Ours, Open: r.callers(kindOurs, c.callers, 0, false)})
		row.Targets = append(row.Targets, target("pairs a second to those of known names", "pairs", fresh, known, trial.AtLeast(c.least)))
		first = cmp.Or(first, fresh)
	}
	for _, peer := range []struct {
		kind string
		role trial.Role
		rule trial.Rule
	}{{kindOnce, trial.Floor, trial.AtLeast(4)}, {kindRedis, trial.Peer, trial.Rule{}}, {kindEtcd, trial.Peer, trial.Rule{}}} {
		row.Subjects = append(row.Subjects, trial.Subject{Name: peer.kind, Role: peer.role, Open: r.callers(peer.kind, distinctCrowd, 64, true)})
		row.Targets = append(row.Targets, target("pairs a second to those of "+peer.kind, "pairs", first, peer.kind, peer.rule))
	}
	return row
}

// callers opens a kind of lock for so many callers, each with a name of its own, or with fresh ones, of which
// none is used again.
func (l *lab) callers(kind string, callers, conns int, fresh bool) trial.Open {
	return func(ctx context.Context, s *trial.Scope) (trial.Meter, error) {
		address, err := l.address(ctx, s, kind)
		if err != nil {
			return nil, err
		}
		locks, err := openLocker(ctx, kind, address, conns)
		if err != nil {
			return nil, err
		}
		s.Defer(func() error { locks.close(); return nil })
		if !fresh {
			return crowd(callers, "pairs", nil, locks.pair), nil
		}
		var serial atomic.Int64
		return crowd(callers, "pairs", nil, func(ctx context.Context, _ string) error {
			return locks.pair(ctx, fmt.Sprintf("%d callers, order %d", callers, serial.Add(1)))
		}), nil
	}
}

// openOnce opens such locks.
func openOnce(pool *pgxpool.Pool) locker {
	return locker{close: pool.Close, lock: func(ctx context.Context, name string) (unlockFunc, error) {
		tag, err := pool.Exec(ctx, naiveUpsert, name, "me")
		if err == nil && tag.RowsAffected() == 0 {
			err = errRefused
		}
		return func(ctx context.Context) error {
			_, err := pool.Exec(ctx, "DELETE FROM naive_locks WHERE name = $1", name)
			return err
		}, err
	}}
}
