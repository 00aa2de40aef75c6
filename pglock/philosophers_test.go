package pglock_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/pglock"
)

// meal is the time that a philosopher has both seats. Philosopher i needs the seats i and i+1.
type meal struct {
	philosopher int
	token       pglock.Token
	from, to    time.Time
}

// dine has the philosophers of several clients, twice as many as seats, dine for that long, and until there were
// ten meals for each. It returns these, each of which takes about a millisecond.
func dine(t *testing.T, clients []*pglock.Client, seats int, lasts time.Duration, lock bool) (meals []meal) {
	t.Helper()
	end := time.Now().Add(lasts)
	var mu sync.Mutex // guards meals
	goesOn := func() bool {
		mu.Lock()
		defer mu.Unlock()
		return time.Now().Before(end) || len(meals) < 10*2*seats
	}
	var all sync.WaitGroup
	for i := range 2 * seats {
		c := clients[i%len(clients)]
		names := []string{fmt.Sprint("seat ", i%seats), fmt.Sprint("seat ", (i+1)%seats)}
		all.Go(func() {
			for goesOn() {
				m := meal{philosopher: i}
				var l *pglock.Lease
				if lock {
					var err error
					if l, err = locktest.All(c, names...).Acquire(t.Context()); err != nil {
						t.Error(err)
						return
					}
					m.token = l.Token()
				}
				m.from = time.Now()
				rest(t, rand.N(2*time.Millisecond))
				m.to = time.Now()
				if lock {
					check(t, l.Release(t.Context()))
				}
				mu.Lock()
				meals = append(meals, m)
				mu.Unlock()
			}
		})
	}
	all.Wait()
	return meals
}

// conflicts returns how many meals began at a seat that was in use, and how many tokens of a seat were
// not above those before.
func conflicts(meals []meal, seats int) (overlaps, disorder int) {
	slices.SortFunc(meals, func(a, b meal) int { return a.from.Compare(b.from) })
	last := make([]meal, seats)
	for _, m := range meals {
		for _, seat := range []int{m.philosopher % seats, (m.philosopher + 1) % seats} {
			if m.from.Before(last[seat].to) {
				overlaps++
			}
			if m.token <= last[seat].token {
				disorder++
			}
			if m.to.After(last[seat].to) {
				last[seat] = m
			}
		}
	}
	return overlaps, disorder
}

// TestI1_P37_DiningPhilosophers dine as several clients, twice as many as seats. No seat is ever in use
// twice, and nobody gets less than half of the mean number of meals. The control is without the lock.
func TestI1_P37_DiningPhilosophers(t *testing.T) {
	t.Parallel()
	seats, clients, lasts := 10, make([]*pglock.Client, 3), 3*time.Second
	if os.Getenv("PGLOCK_CHAOS") != "" {
		seats, clients, lasts = 50, make([]*pglock.Client, 10), time.Minute
	}
	f := newFixture(t)
	for i := range clients {
		clients[i] = f.open()
	}
	meals := dine(t, clients, seats, lasts, true)
	if overlaps, disorder := conflicts(meals, seats); overlaps > 0 || disorder > 0 {
		t.Errorf("%d of %d meals began at a seat in use, %d tokens were out of order", overlaps, len(meals), disorder)
	}
	count := make([]int, 2*seats)
	for _, m := range meals {
		count[m.philosopher]++
	}
	mean := float64(len(meals)) / float64(len(count))
	t.Logf("%d philosophers of %d clients had %d meals at %d seats in %v: mean %.1f, slowest %d, fastest %d",
		len(count), len(clients), len(meals), seats, lasts, mean, slices.Min(count), slices.Max(count))
	if float64(slices.Min(count)) < mean/2 {
		t.Errorf("the slowest philosopher had %d meals, the mean is %.1f", slices.Min(count), mean)
	}
	control := dine(t, clients, seats, 300*time.Millisecond, false)
	if overlaps, _ := conflicts(control, seats); overlaps == 0 {
		t.Errorf("control: without the lock none of %d meals began at a seat in use", len(control))
	}
}
