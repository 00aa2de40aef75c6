package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/pglock/pglock-go/internal/bench/trial"
	"github.com/pglock/pglock-go/pglock"
)

const (
	// fairGoroutines is the number of goroutines of one process that compete for one name.
	fairGoroutines = 200

	// fairTime is the time in which grants are counted, and fairLead the time before it.
	fairTime      = 30 * time.Second
	fairLead      = time.Second
	quickFairTime = 3 * time.Second
	shortFairTime = 300 * time.Millisecond
	shortFairLead = 100 * time.Millisecond
)

// fairRow is F1: whether all competitors for one name are granted it equally often.
func fairRow() trial.Row {
	r := &hotLab{}
	processes := fmt.Sprintf("%d processes", manyProcesses)
	goroutines := fmt.Sprintf("%d goroutines of one process", fairGoroutines)
	fair := func(subject string) trial.Target {
		return trial.Target{What: "slowest to fastest, " + subject, Ours: []trial.Ref{{Subject: subject, Figure: "fairness"}}, Rule: trial.AtLeast(0.9)}
	}
	return trial.Row{
		Number:  "F1",
		What:    fmt.Sprintf("one name, acquire+release again and again for %.0f s", fairTime.Seconds()),
		Prepare: r.prepare,
		Subjects: []trial.Subject{
			{Name: processes, Role: trial.Ours, Open: r.fairProcesses},
			{Name: goroutines, Role: trial.Ours, Open: r.fairGoroutines},
		},
		Targets: []trial.Target{fair(processes), fair(goroutines)},
		Once:    true,
		Estimate: func(s trial.Scale) time.Duration {
			m := newFairMeter(&trial.Scope{Scale: s}, nil)
			return 3*time.Second + 2*(m.lead+m.length)
		},
	}
}

func (r *hotLab) fairProcesses(ctx context.Context, s *trial.Scope) (trial.Meter, error) {
	workers, err := r.hireAll(ctx, s, kindOurs, manyProcesses)
	if err != nil {
		return nil, err
	}
	return newFairMeter(s, func(_ context.Context, from, to time.Time) ([][]holding, error) {
		return workTogether(workers, from, to)
	}), nil
}

func (r *hotLab) fairGoroutines(ctx context.Context, s *trial.Scope) (trial.Meter, error) {
	client, err := r.client(ctx, s, "pglock")
	if err != nil {
		return nil, err
	}
	return newFairMeter(s, func(ctx context.Context, from, to time.Time) ([][]holding, error) {
		return goTogether(ctx, client, fairGoroutines, from, to)
	}), nil
}

// goTogether lets n goroutines lock and unlock one name from one moment to another. It returns the
// times at which each held the lock.
func goTogether(ctx context.Context, client *pglock.Client, n int, from, to time.Time) ([][]holding, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	begin := time.After(time.Until(from))
	start := make(chan struct{})
	byGoroutine, errs := make([][]holding, n), make([]error, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			<-start
			for errs[i] == nil && time.Now().Before(to) {
				var h holding
				if h, errs[i] = holdOnce(ctx, client); errs[i] == nil {
					byGoroutine[i] = append(byGoroutine[i], h)
				}
			}
			if errs[i] != nil {
				cancel() // the others need not go on
			}
		})
	}
	<-begin
	close(start)
	all.Wait()
	return byGoroutine, errors.Join(errs...)
}

func holdOnce(ctx context.Context, client *pglock.Client) (h holding, err error) {
	l, err := client.Acquire(ctx, "hot")
	if err != nil {
		return h, err
	}
	h.Acquired = time.Now().UnixNano()
	h.Freed = time.Now().UnixNano()
	return h, l.Release(ctx)
}

// fairMeter lets a crowd compete once and counts the grants of each member.
type fairMeter struct {
	lead, length time.Duration
	work         func(ctx context.Context, from, to time.Time) (byMember [][]holding, err error)
	share
}

func newFairMeter(s *trial.Scope, work func(ctx context.Context, from, to time.Time) ([][]holding, error)) *fairMeter {
	m := &fairMeter{lead: fairLead, length: fairTime, work: work}
	switch {
	case s.Short:
		m.lead, m.length = shortFairLead, shortFairTime
	case s.Quick:
		m.length = quickFairTime
	}
	return m
}

// Turn counts from a moment when all members have long been competing until the moment when they stop.
// The first member to connect has the lock alone at first. At the end each waiter is still granted the
// lock once, which would make the slowest member look better.
func (m *fairMeter) Turn(ctx context.Context, _ time.Duration) error {
	begin := time.Now().Add(5 * time.Millisecond)
	from := begin.Add(m.lead)
	to := from.Add(m.length)
	byMember, err := m.work(ctx, begin, to)
	m.share = shared(byMember, from, to)
	return err
}

func (m *fairMeter) Figures() []trial.Figure {
	return []trial.Figure{
		{Name: "fairness", Unit: trial.Times, Value: m.fairness()},
		{Name: "passes", Unit: trial.PerSecond, Value: float64(m.passes) / m.length.Seconds()},
		{Name: "slowest", Unit: trial.Count, Value: float64(slices.Min(m.counts))},
		{Name: "fastest", Unit: trial.Count, Value: float64(slices.Max(m.counts))},
	}
}

// share is how the members of a crowd shared a lock.
type share struct {
	counts []int // of the times that each member got it
	passes int   // from one member to another
}

// shared counts the grants in a half-open interval.
func shared(byMember [][]holding, from, to time.Time) share {
	s := share{counts: make([]int, len(byMember))}
	last := -1
	for _, h := range within(inOrder(byMember), from, to) {
		s.counts[h.by]++
		if last >= 0 && last != h.by {
			s.passes++
		}
		last = h.by
	}
	return s
}

// fairness is the grants of the slowest member divided by those of the fastest. Without any grant it is
// 0.
func (s share) fairness() float64 {
	most := slices.Max(s.counts)
	if most == 0 {
		return 0
	}
	return float64(slices.Min(s.counts)) / float64(most)
}
