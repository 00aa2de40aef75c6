package pglock_test

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/pglock"
)

// philosophersVariable makes the test binary a process of philosophers. It has a table in JSON.
const philosophersVariable = "PGLOCK_TEST_PHILOSOPHERS"

// table is a round table with the philosophers of one process. Philosopher i needs the seats i and i+1.
type table struct {
	URL, Schema  string
	Seats        int
	Philosophers []int
	For          time.Duration
	Without      bool // without the lock
}

// meal is the time that a philosopher has both seats, by the wall clock of the host.
type meal struct {
	Philosopher int
	Token       int64
	From, To    int64 // nanoseconds
}

// dine has the philosophers dine, and returns their meals.
func (tb table) dine(ctx context.Context) (meals []meal, err error) {
	pool, err := pgxpool.New(ctx, tb.URL)
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	client, err := pglock.Open(ctx, pool, pglock.WithSchema(tb.Schema))
	if err != nil {
		return nil, err
	}
	defer func() { _ = client.Close(ctx) }()
	end := time.Now().Add(tb.For)
	var mu sync.Mutex // guards meals and err
	var all sync.WaitGroup
	for _, i := range tb.Philosophers {
		all.Go(func() {
			for time.Now().Before(end) {
				m, failed := tb.eat(ctx, client, i)
				mu.Lock()
				meals, err = append(meals, m), cmp.Or(err, failed)
				mu.Unlock()
				if failed != nil {
					return
				}
			}
		})
	}
	all.Wait()
	return meals, err
}

// eat is one meal of a philosopher. It takes about a millisecond.
func (tb table) eat(ctx context.Context, client *pglock.Client, i int) (m meal, err error) {
	m.Philosopher = i
	var l *pglock.Lease
	if !tb.Without {
		names := []string{fmt.Sprint("seat ", i%tb.Seats), fmt.Sprint("seat ", (i+1)%tb.Seats)}
		if l, err = locktest.All(client, names...).Acquire(ctx); err != nil {
			return m, err
		}
		m.Token = int64(l.Token())
	}
	m.From = machineTime()
	<-time.After(rand.N(2 * time.Millisecond))
	m.To = machineTime()
	if l != nil {
		err = l.Release(ctx)
	}
	return m, err
}

// runPhilosophers is the main function of a process of philosophers. It writes its meals.
func runPhilosophers(in string, out io.Writer) int {
	var tb table
	err := json.Unmarshal([]byte(in), &tb)
	if err == nil {
		var meals []meal
		meals, err = tb.dine(context.Background())
		err = cmp.Or(err, json.NewEncoder(out).Encode(meals))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// conflicts returns how many meals began at a seat that was in use, and how many tokens of a seat were
// not above those before.
func conflicts(meals []meal, seats int) (overlaps, disorder int) {
	slices.SortFunc(meals, func(a, b meal) int { return cmp.Compare(a.From, b.From) })
	last := make([]meal, seats)
	for _, m := range meals {
		for _, seat := range []int{m.Philosopher % seats, (m.Philosopher + 1) % seats} {
			if m.From < last[seat].To {
				overlaps++
			}
			if m.Token <= last[seat].Token {
				disorder++
			}
			if m.To > last[seat].To {
				last[seat] = m
			}
		}
	}
	return overlaps, disorder
}

// TestI1_P37_DiningPhilosophers dine in several processes, twice as many as seats. No seat is ever in use
// twice, and nobody gets less than half of the mean number of meals. The control is without the lock.
func TestI1_P37_DiningPhilosophers(t *testing.T) {
	t.Parallel()
	seats, processes, lasts := 10, 3, 3*time.Second
	if os.Getenv("PGLOCK_CHAOS") != "" {
		seats, processes, lasts = 50, 10, time.Minute
	}
	f := newFixture(t)
	run := func(lasts time.Duration, without bool) (meals []meal) {
		t.Helper()
		var mu sync.Mutex // guards meals
		var all sync.WaitGroup
		for p := range processes {
			tb := table{URL: f.pool.Config().ConnString(), Schema: f.schema, Seats: seats, For: lasts, Without: without}
			for i := p; i < 2*seats; i += processes {
				tb.Philosophers = append(tb.Philosophers, i)
			}
			all.Go(func() {
				got, err := dineApart(t.Context(), tb)
				check(t, err)
				mu.Lock()
				defer mu.Unlock()
				meals = append(meals, got...)
			})
		}
		all.Wait()
		return meals
	}
	meals := run(lasts, false)
	if overlaps, disorder := conflicts(meals, seats); overlaps > 0 || disorder > 0 {
		t.Errorf("%d of %d meals began at a seat in use, %d tokens were out of order", overlaps, len(meals), disorder)
	}
	count := make([]int, 2*seats)
	for _, m := range meals {
		count[m.Philosopher]++
	}
	mean := float64(len(meals)) / float64(len(count))
	slowest, fastest := slices.Min(count), slices.Max(count)
	t.Logf("%d philosophers in %d processes had %d meals at %d seats in %v: mean %.1f, slowest %d (%.2f of the mean), fastest %d",
		len(count), processes, len(meals), seats, lasts, mean, slowest, float64(slowest)/mean, fastest)
	if float64(slowest) < mean/2 {
		t.Errorf("the slowest philosopher had %d meals, the mean is %.1f", slowest, mean)
	}
	control := run(300*time.Millisecond, true)
	overlaps, _ := conflicts(control, seats)
	t.Logf("control without the lock: %d meals, %d began at a seat in use", len(control), overlaps)
	if overlaps == 0 {
		t.Errorf("control: without the lock none of %d meals began at a seat in use", len(control))
	}
}

// dineApart runs dine in a process of its own.
func dineApart(ctx context.Context, tb table) (meals []meal, err error) {
	in, err := json.Marshal(tb)
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, tb.For+time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, self)
	cmd.Env = append(os.Environ(), philosophersVariable+"="+string(in))
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, err
	}
	return meals, json.Unmarshal(out, &meals)
}
