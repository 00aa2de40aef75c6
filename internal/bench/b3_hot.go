package main

import (
	"cmp"
	"context"
	"fmt"
	"net/rpc"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/pglock/pglock-go/internal/backoff"
	"github.com/pglock/pglock-go/internal/bench/trial"
)

const (
	// The numbers of processes that compete for one name.
	fewProcesses  = 4
	manyProcesses = 16

	// fairGoroutines is the number of goroutines of one process that compete for one name.
	fairGoroutines = 200
)

// hotRow is B3: processes compete for one name, and each acquires it again as soon as it has released
// it.
func hotRow() trial.Row {
	r := &lab{}
	row := trial.Row{
		Number: "B3", What: "hot name, gap from the release to the next process",
		Prepare: r.prepare(livelySettings), Throughput: true,
	}
	name := func(kind string, n int) string { return fmt.Sprintf("%s, %d processes", kind, n) }
	for _, c := range []struct {
		n    int
		etcd float64 // at most, of its gap
	}{{fewProcesses, 0.4}, {manyProcesses, 0.5}} {
		for kind, role := range map[string]trial.Role{kindOurs: trial.Ours, kindAdvisory: trial.Floor, kindEtcd: trial.Peer, kindRedis: trial.Peer} {
			row.Subjects = append(row.Subjects, trial.Subject{Name: name(kind, c.n), Role: role, Open: r.processes(kind, c.n, fair{})})
		}
		ours := name(kindOurs, c.n)
		spread := target("p99 to p50", "gap p99", ours, ours, trial.AtMost(3))
		spread.Against.Figure = "gap p50"
		row.Targets = append(row.Targets,
			target(fmt.Sprintf("p50 of the gap, %d processes, in us", c.n), "gap p50", ours, "", trial.Rule{}), spread,
			target("slowest process to fastest", "fairness", ours, "", trial.AtLeast(0.95).InEveryRound()),
			// That lock is passed on by waking processes and nothing else, so the ratio holds on a machine that wakes slowly.
			target("p50 to that of a blocked advisory lock", "gap p50", ours, name(kindAdvisory, c.n), trial.AtMost(7)),
			target("p50 to that of etcd", "gap p50", ours, name(kindEtcd, c.n), trial.AtMost(c.etcd)))
	}
	slices.SortFunc(row.Subjects, func(a, b trial.Subject) int { return cmp.Compare(a.Name, b.Name) })
	return row
}

// fairRow is F1: whether all competitors for one name are granted it equally often.
func fairRow() trial.Row {
	r := &lab{}
	processes := fmt.Sprintf("%d processes", manyProcesses)
	goroutines := fmt.Sprintf("%d goroutines of one process", fairGoroutines)
	length := fair{lead: time.Second, time: 30 * time.Second}
	row := trial.Row{
		Number: "F1", What: fmt.Sprintf("one name, acquire+release again and again for %v", length.time), Once: true,
		Prepare: r.prepare(livelySettings),
		Subjects: []trial.Subject{
			{Name: processes, Role: trial.Ours, Open: r.processes(kindOurs, manyProcesses, length)},
			{Name: goroutines, Role: trial.Ours, Open: r.goroutines(fairGoroutines, length)},
		},
	}
	for _, s := range row.Subjects {
		row.Targets = append(row.Targets, target("slowest to fastest, "+s.Name, "fairness", s.Name, "", trial.AtLeast(0.95)))
	}
	return row
}

// fair is for how long a crowd competes, if that is not the length of the turn, and its pace: each holder
// keeps the lock until the clock shows a multiple of every.
type fair struct{ lead, time, every time.Duration }

func (f fair) at(s trial.Scale) fair {
	return pick(s, f, fair{f.lead, f.time / 10, f.every}, fair{f.lead / 10, f.time / 100, f.every})
}

// untilNext returns the time until the clock shows a multiple of every; none if that is 0.
func untilNext(every time.Duration) time.Duration {
	now := time.Now()
	return now.Truncate(every).Add(every).Sub(now)
}

// contest lets the members of a crowd lock and unlock one name from one moment to another. It returns the
// times at which each held the lock.
type contest func(ctx context.Context, from, to time.Time) (byMember [][]holding, err error)

// processes opens a kind of lock in n processes.
func (l *lab) processes(kind string, n int, length fair) trial.Open {
	return func(ctx context.Context, s *trial.Scope) (trial.Meter, error) {
		address, err := l.address(ctx, s, kind)
		if err != nil {
			return nil, err
		}
		workers := make([]*rpc.Client, n)
		for i := range workers {
			if workers[i], err = hire(s, kind, address); err != nil {
				return nil, fmt.Errorf("a worker for %s: %w", kind, err)
			}
		}
		return hot(length.at(s.Scale), func(_ context.Context, from, to time.Time) ([][]holding, error) {
			byMember := make([][]holding, n)
			var all errgroup.Group
			for i, w := range workers {
				all.Go(func() error { return w.Call("Contender.Contend", Contention{from, to, length.every}, &byMember[i]) })
			}
			return byMember, all.Wait()
		}), nil
	}
}

// goroutines opens a client that n goroutines share.
func (l *lab) goroutines(n int, length fair) trial.Open {
	return func(ctx context.Context, s *trial.Scope) (trial.Meter, error) {
		client, err := l.client(ctx, s, "pglock")
		return hot(length.at(s.Scale), func(ctx context.Context, from, to time.Time) ([][]holding, error) {
			byMember := make([][]holding, n)
			if err := backoff.Sleep(ctx, time.Until(from)); err != nil {
				return nil, err
			}
			all, ctx := errgroup.WithContext(ctx)
			for i := range n {
				all.Go(func() (err error) {
					byMember[i], err = hold(ctx, ours(client).lock, to, length.every)
					return err
				})
			}
			return byMember, all.Wait()
		}), err
	}
}

// hold locks and unlocks one name until a moment, at the pace of every, and returns the times at which it
// held the lock.
func hold(ctx context.Context, lock lockFunc, to time.Time, every time.Duration) (held []holding, err error) {
	for time.Now().Before(to) {
		unlock, err := lock(ctx, "hot")
		if err != nil {
			return held, err
		}
		h := holding{Acquired: time.Now().UnixNano()}
		time.Sleep(untilNext(every))
		h.Freed = time.Now().UnixNano()
		held = append(held, h)
		if err := unlock(ctx); err != nil {
			return held, err
		}
	}
	return held, nil
}

// hot is the meter of a crowd that competes: the gaps between the holders, and how often each was granted
// the lock.
//
// All members begin at the same moment. It counts from a moment when all of them have long been competing
// until the moment when they stop. The first member to connect has the lock alone at first. At the end
// each waiter is still granted the lock once, which would make the slowest member look better.
func hot(f fair, compete contest) trial.Meter {
	return &turnMeter{turn: func(ctx context.Context, d time.Duration) ([]trial.Figure, error) {
		d = max(d, crowdTurn)
		lead := d / 2
		if f.time > 0 {
			d, lead = f.time, f.lead
		}
		begin := time.Now().Add(5 * time.Millisecond)
		from := begin.Add(lead)
		to := from.Add(d)
		byMember, err := compete(ctx, begin, to)
		if err != nil {
			return nil, err
		}
		g := count(byMember, from, to)
		if g.passed == 0 {
			g.gaps.Record(d) // nobody else came in all that time
		}
		return append(g.gaps.Figures("gap"),
			trial.Figure{Name: "fairness", Unit: trial.Times, Value: g.fairness()},
			trial.PerTime("passed on", g.passed, d)), nil
	}}
}

// grants are those of a crowd.
type grants struct {
	counts []int // of each member
	passed int   // from one member to another
	gaps   *trial.Latencies
}

// count counts the grants in a half-open interval.
func count(byMember [][]holding, from, to time.Time) grants {
	type heldBy struct {
		holding
		by int
	}
	var all []heldBy
	for i, held := range byMember {
		for _, h := range held {
			if h.Acquired >= from.UnixNano() && h.Acquired < to.UnixNano() {
				all = append(all, heldBy{h, i})
			}
		}
	}
	slices.SortFunc(all, func(a, b heldBy) int { return cmp.Compare(a.Acquired, b.Acquired) })
	g := grants{counts: make([]int, len(byMember)), gaps: trial.NewLatencies()}
	for i, h := range all {
		g.counts[h.by]++
		if i > 0 && h.by != all[i-1].by {
			g.gaps.Record(time.Duration(h.Acquired - all[i-1].Freed))
			g.passed++
		}
	}
	return g
}

// fairness is the grants of the slowest member divided by those of the fastest. Without any grant it is
// 0.
func (g grants) fairness() float64 {
	return float64(slices.Min(g.counts)) / float64(max(slices.Max(g.counts), 1))
}
