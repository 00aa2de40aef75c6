package batch_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglock/pglock-go/pglock/internal/batch"
)

// sender records the batches of a queue. Each takes a second to send.
type sender struct {
	mu      sync.Mutex
	batches []string
	active  int
	most    int
}

func (s *sender) send(kind string) func(ops []int) {
	return func(ops []int) {
		s.mu.Lock()
		s.batches = append(s.batches, fmt.Sprint(kind, ops))
		s.active++
		s.most = max(s.most, s.active)
		s.mu.Unlock()
		pass(time.Second)
		s.mu.Lock()
		s.active--
		s.mu.Unlock()
	}
}

func (s *sender) sent() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.batches)
}

// fixture is a Dispatcher with two queues, in a bubble of synctest.
type fixture struct {
	*batch.Dispatcher
	acquires, releases *batch.Queue[int]
	sender             *sender
}

func run(t *testing.T, workers, size int, test func(t *testing.T, f fixture)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &sender{}
		d := batch.New(workers, size)
		f := fixture{d, batch.NewQueue(d, s.send("a")), batch.NewQueue(d, s.send("r")), s}
		test(t, f)
		pass(time.Hour) // everything has been sent
		if n := d.Pending(); n != 0 {
			t.Errorf("%d operations were left", n)
		}
		d.Stop()
	})
}

func (f fixture) wants(t *testing.T, when string, want ...string) {
	t.Helper()
	synctest.Wait()
	if got := f.sender.sent(); !slices.Equal(got, want) {
		t.Errorf("%s: sent %v, want %v", when, got, want)
	}
}

// TestALoneOperationWaitsForNothing: neither for a timer, nor for others.
func TestALoneOperationWaitsForNothing(t *testing.T) {
	t.Parallel()
	run(t, 2, 4, func(t *testing.T, f fixture) {
		t.Helper()
		began := time.Now()
		f.acquires.Submit(1)
		f.wants(t, "the first", "a[1]")
		f.acquires.Submit(2)
		f.wants(t, "the second, on another worker", "a[1]", "a[2]")
		if took := time.Since(began); took != 0 {
			t.Errorf("sent after %v", took)
		}
	})
}

// TestOperationsGatherWhileAllWorkersAreBusy: they are sent in batches of the largest size, in
// order, and the two kinds in alternation.
func TestOperationsGatherWhileAllWorkersAreBusy(t *testing.T) {
	t.Parallel()
	run(t, 1, 3, func(t *testing.T, f fixture) {
		t.Helper()
		f.acquires.Submit(0)
		synctest.Wait()
		for i := range 5 {
			f.acquires.Submit(i + 1)
			f.releases.Submit(i + 1)
		}
		f.wants(t, "while the worker is busy", "a[0]")
		if n := f.Pending(); n != 10 {
			t.Errorf("%d operations are pending", n)
		}
		pass(10 * time.Second)
		f.wants(t, "afterwards", "a[0]", "r[1 2 3]", "a[1 2 3]", "r[4 5]", "a[4 5]")
		f.releases.Submit(6)
		f.wants(t, "on the idle worker", "a[0]", "r[1 2 3]", "a[1 2 3]", "r[4 5]", "a[4 5]", "r[6]")
	})
}

// TestBeyondAFewBusyWorkersOperationsGather: the third worker starts for half a batch, and no more
// workers than allowed.
func TestBeyondAFewBusyWorkersOperationsGather(t *testing.T) {
	t.Parallel()
	run(t, 6, 8, func(t *testing.T, f fixture) {
		t.Helper()
		for i := range 2 {
			f.acquires.Submit(i)
			synctest.Wait()
		}
		for i := range 3 {
			f.acquires.Submit(10 + i)
		}
		f.wants(t, "two workers are busy", "a[0]", "a[1]")
		f.acquires.Submit(13)
		f.wants(t, "half a batch has gathered", "a[0]", "a[1]", "a[10 11 12 13]")
		for i := range 100 {
			f.releases.Submit(i)
		}
		synctest.Wait()
		f.sender.mu.Lock()
		defer f.sender.mu.Unlock()
		if f.sender.most != 6 {
			t.Errorf("%d workers", f.sender.most)
		}
	})
}

// TestInline: a caller sends its operation itself only while nothing is in progress. Operations
// that queue behind it are sent afterwards, without a further call.
func TestInline(t *testing.T) {
	t.Parallel()
	run(t, 1, 4, func(t *testing.T, f fixture) {
		t.Helper()
		if !f.BeginInline() {
			t.Fatal("refused while nothing is in progress")
		}
		if f.BeginInline() {
			t.Error("a second caller at the same time")
		}
		f.acquires.Submit(1)
		f.acquires.Submit(2)
		f.wants(t, "the caller counts as the only worker")
		f.EndInline()
		f.wants(t, "behind the caller", "a[1 2]")
		if f.BeginInline() {
			t.Error("while a worker is busy")
		}
		pass(2 * time.Second)
		if !f.BeginInline() {
			t.Error("refused when the worker is idle again")
		}
		f.EndInline()
	})
}

// TestEveryOperationIsSentOnce: with many callers at a time, on few workers.
func TestEveryOperationIsSentOnce(t *testing.T) {
	t.Parallel()
	const callers, each = 16, 500
	var mu sync.Mutex
	seen := map[int]int{}
	var unsent sync.WaitGroup
	unsent.Add(callers * each)
	record := func(ops []int) {
		mu.Lock()
		defer mu.Unlock()
		if len(ops) == 0 || len(ops) > 32 {
			t.Errorf("a batch of %d", len(ops))
		}
		for _, op := range ops {
			seen[op]++
			unsent.Done()
		}
	}
	d := batch.New(3, 32)
	queues := []*batch.Queue[int]{batch.NewQueue(d, record), batch.NewQueue(d, record)}
	for caller := range callers {
		go func() {
			for i := range each {
				op := caller*each + i
				if i%7 == 0 && d.BeginInline() {
					record([]int{op})
					d.EndInline()
				} else {
					queues[op%2].Submit(op)
				}
			}
		}()
	}
	unsent.Wait()
	d.Stop()
	for op, n := range seen {
		if n != 1 {
			t.Errorf("operation %d was sent %d times", op, n)
		}
	}
}

// pass waits for d of the bubble's time.
func pass(d time.Duration) { <-time.After(d) }
