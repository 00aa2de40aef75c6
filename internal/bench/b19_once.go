package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/pglock/pglock-go/internal/bench/trial"
	"github.com/pglock/pglock-go/pglock"
)

// Names that are used once come at onceRate in a second, and stay for onceShare of the turn: a minute of
// the ten of a whole run.
const (
	onceRate    = 2000
	onceCallers = 64
	onceShare   = 10
)

// onceRow is B19: the life of names that are used once, from their insert to prune and autovacuum.
func onceRow() trial.Row {
	r := &lab{}
	bound := func(what, figure, against string, rule trial.Rule) trial.Target {
		return trial.Target{What: what, Ours: trial.Ref{Subject: kindOurs, Figure: figure}, Against: trial.Ref{Subject: kindOurs, Figure: against}, Rule: rule}
	}
	return trial.Row{
		Number: "B19",
		What:   fmt.Sprintf("%d new names a second for ten minutes, which are pruned after one", onceRate),
		Prepare: func(ctx context.Context, s *trial.Scope) error { // autovacuum looks as often as names are pruned
			return r.prepare(map[string]string{"autovacuum_naptime": pick(s.Scale, "1min", "6s", "1s")})(ctx, s)
		},
		Subjects: []trial.Subject{{Name: kindOurs, Role: trial.Ours, Open: func(ctx context.Context, s *trial.Scope) (trial.Meter, error) {
			client, err := r.client(ctx, s, "pglock", pglock.WithRetention(0))
			length := pick(s.Scale, 10*time.Minute, time.Minute, 2*time.Second)
			return &turnMeter{turn: func(ctx context.Context, _ time.Duration) ([]trial.Figure, error) {
				return r.useOnce(ctx, client, length)
			}}, err
		}}},
		Targets: []trial.Target{
			bound("size at the end to the largest in the second and third tenth", "size in the last tenth", "size before", trial.AtMost(1.1)),
			bound("p99 to p50", "pair p99", "pair p50", trial.AtMost(5)),
		},
		Once: true,
		Long: true,
	}
}

// life is what the samples of a turn show.
type life struct {
	size, dead float64 // of the table and its indexes, in bytes; rows that are not vacuumed yet
}

// useOnce acquires and releases new names for that long, and prunes as a client does by itself. A pair's
// time begins when it is due, so a delay counts for all pairs that it delays.
func (l *lab) useOnce(ctx context.Context, client *pglock.Client, length time.Duration) ([]trial.Figure, error) {
	const gap = time.Second / onceRate
	idle := length / onceShare
	var mu sync.Mutex
	all, pruning := trial.NewLatencies(), trial.NewLatencies()
	var prunes [][2]time.Time
	var deleted int64
	var busy time.Duration
	var tenths [10]life
	work, each := errgroup.WithContext(ctx)
	began := time.Now()
	end := began.Add(length)
	every := func(d time.Duration, what func() error) {
		work.Go(func() error {
			for at := began.Add(d); at.Before(end) && each.Err() == nil; at = at.Add(d) {
				<-time.After(time.Until(at))
				if err := what(); err != nil {
					return err
				}
			}
			return nil
		})
	}
	every(idle/4, func() error {
		from := time.Now()
		n, err := client.Prune(each, idle)
		mu.Lock()
		defer mu.Unlock()
		prunes = append(prunes, [2]time.Time{from, time.Now()})
		deleted, busy = deleted+n, busy+time.Since(from)
		return err
	})
	every(length/100, func() error {
		var now life
		err := l.pool.QueryRow(each, `SELECT pg_total_relation_size('pglock.distributed_locks')::float8, n_dead_tup::float8
			FROM pg_stat_user_tables WHERE relid = 'pglock.distributed_locks'::regclass`).Scan(&now.size, &now.dead)
		tenth := &tenths[min(int(10*time.Since(began)/length), 9)]
		tenth.size, tenth.dead = max(tenth.size, now.size), max(tenth.dead, now.dead)
		return err
	})
	type pairTime struct{ due, done time.Time }
	times := make([][]pairTime, onceCallers)
	bytes, err := l.written(ctx, func() error {
		for i := range onceCallers {
			work.Go(func() error {
				for n := i; ; n += onceCallers {
					due := began.Add(time.Duration(n) * gap)
					if !due.Before(end) {
						return nil
					}
					<-time.After(time.Until(due))
					if err := acquirePair(client)(each, fmt.Sprintf("order:%d", n)); err != nil {
						return err
					}
					times[i] = append(times[i], pairTime{due, time.Now()})
				}
			})
		}
		return work.Wait()
	})
	if err != nil {
		return nil, err
	}
	pairs := 0
	for _, caller := range times {
		pairs += len(caller)
		for _, t := range caller {
			all.Record(t.done.Sub(t.due))
			for _, p := range prunes {
				if t.due.Before(p[1]) && p[0].Before(t.done) {
					pruning.Record(t.done.Sub(t.due))
				}
			}
		}
	}
	var rows float64
	err = l.pool.QueryRow(ctx, "SELECT count(*)::float8 FROM pglock.distributed_locks").Scan(&rows)
	before, dead := 0.0, 0.0
	for i, t := range tenths {
		if dead = max(dead, t.dead); i == 1 || i == 2 {
			before = max(before, t.size)
		}
	}
	figures := append(all.Figures("pair"), pruning.Figures("pair beside a prune")...)
	return append(figures,
		trial.PerTime("pairs", pairs, length),
		trial.Figure{Name: "WAL of a pair", Unit: trial.Bytes, Value: bytes / float64(pairs)},
		trial.Figure{Name: "size before", Unit: trial.Bytes, Value: before},
		trial.Figure{Name: "size in the last tenth", Unit: trial.Bytes, Value: tenths[9].size},
		trial.Figure{Name: "dead rows, at most", Unit: trial.Count, Value: dead},
		trial.Figure{Name: "rows at the end", Unit: trial.Count, Value: rows},
		trial.Figure{Name: "size of a name", Unit: trial.Bytes, Value: tenths[9].size / rows},
		trial.PerTime("rows that a prune deletes", int(deleted), busy),
	), err
}
