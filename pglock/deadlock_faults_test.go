package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/faultproxy"
	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/timing"
	"github.com/pglock/pglock-go/pglock"
)

// disturbance is what the clients of a measurement meet until stop is called: there is the way of one half of them.
type disturbance struct {
	name  string
	start func(f fixture) (there fixture, stop func())
}

var disturbances = []disturbance{
	{"undisturbed", func(f fixture) (fixture, func()) { return f, func() {} }},
	{"packets delayed by 120 ms", func(f fixture) (fixture, func()) {
		const delay = 120 * time.Millisecond
		proxy, there := f.proxied()
		stop := every(delay/4, func() { proxy.Delay(delay/2 + rand.N(delay)) })
		return there, func() { stop(); proxy.Delay(0) }
	}},
	{"a third of the connections ended several times a second", func(f fixture) (fixture, func()) {
		role := pgtest.RoleOf(pgtest.UserPool(f.t, f.pool, f.schema))
		return f, every(150*time.Millisecond, func() {
			<-time.After(rand.N(250 * time.Millisecond))
			_, err := f.pool.Exec(context.Background(), "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = $1 AND random() < 1.0 / 3", role)
			check(f.t, err)
		})
	}},
}

// every calls do again and again until stop is called, which waits for its end.
func every(pause time.Duration, do func()) (stop func()) {
	end := make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() {
		for {
			select { // if both are ready, do runs once more
			case <-end:
				return
			case <-time.After(pause):
				do()
			}
		}
	})
	return func() { close(end); running.Wait() }
}

// measureRings runs rings of two clients under each disturbance, several at a time, and gives what ring returns to
// report.
func measureRings(t *testing.T, ring func(f fixture, x, z *pglock.Client, n int) ringResult, report func(t *testing.T, all []ringResult)) {
	t.Helper()
	rings, lanes := 4, 2
	if os.Getenv("PGLOCK_CHAOS") != "" {
		rings, lanes = 200, 4
	}
	for _, d := range disturbances {
		t.Run(d.name, func(t *testing.T) {
			f := newFixture(t)
			there, stop := d.start(f)
			var next atomic.Int32
			var lane sync.WaitGroup
			all := make([]ringResult, rings)
			var log logBuffer
			for range lanes {
				x, z := there.open(pglock.WithHolder("X"), log.option()), f.open(pglock.WithHolder("Z"), log.option())
				lane.Go(func() {
					for n := int(next.Add(1)); n <= rings; n = int(next.Add(1)) {
						all[n-1] = ring(f, x, z, n)
					}
				})
			}
			lane.Wait()
			stop()
			report(t, all)
		})
	}
}

// ringResult is what came of one ring.
type ringResult struct {
	deadlocks int
	took      time.Duration
}

func deadlocksOf(all []ringResult) (sum int) {
	for _, r := range all {
		sum += r.deadlocks
	}
	return sum
}

// logTimes logs the distribution of the times.
func logTimes(t *testing.T, what string, all []ringResult) {
	t.Helper()
	slices.SortFunc(all, func(a, b ringResult) int { return int(a.took - b.took) })
	n := len(all)
	t.Logf("%s: %v (median), %v (95 %%), %v (longest) of %d", what, all[n/2].took, all[n*95/100].took, all[n-1].took, n)
}

// nestedAcquire acquires the lock under a lease and releases it at once.
func nestedAcquire(ctx context.Context, l pglock.Lock, opts ...pglock.LeaseOption) <-chan error {
	ended := make(chan error, 1)
	go func() {
		got, err := l.Acquire(ctx, opts...)
		if err == nil {
			err = got.Release(context.WithoutCancel(ctx))
		}
		ended <- err
	}()
	return ended
}

// TestAWaitThatWasGivenUpIsNoDeadlock: X holds a, and gives up its wait for b. From then on Z, which holds b, waits for
// a, and is granted it when X releases it. TestRingsUnderFaults is the control, in which X still waits.
func TestAWaitThatWasGivenUpIsNoDeadlock(t *testing.T) { //nolint:tparallel // the times of one are not those beside the others
	t.Parallel()
	ring := func(f fixture, x, z *pglock.Client, n int) (r ringResult) {
		a, b := fmt.Sprint("a", n), fmt.Sprint("b", n)
		atX, atZ := acquire(t, x, a), acquire(t, z, b)
		ctx, cancel := context.WithCancel(atX.Context())
		defer cancel()
		var opts []pglock.LeaseOption
		ends := time.Now()
		if n%2 == 0 {
			limit := time.Second + rand.N(time.Second)
			ends, opts = ends.Add(limit), append(opts, pglock.WithWait(limit))
		}
		waits := nestedAcquire(ctx, x.Lock(b), opts...)
		pgtest.Eventually(t, "X waits", func() bool { // or its time is over
			return len(waits) > 0 || value[int](f, "SELECT count(*) FROM pglock.nested_waits WHERE names = ARRAY[$1]", b) > 0
		})
		if opts == nil {
			<-time.After(rand.N(time.Second))
			ends = time.Now()
			cancel()
		}
		if err := locktest.Receive(t, waits); !errors.Is(err, pglock.ErrTimeout) && !errors.Is(err, context.Canceled) {
			t.Errorf("ring %d: X: %v", n, err)
		}
		r.took = time.Since(ends)
		<-time.After(25 * time.Millisecond)
		waits = nestedAcquire(atZ.Context(), z.Lock(a))
		<-time.After(300 * time.Millisecond) // X works
		release(t, atX)
		switch err := locktest.Receive(t, waits); {
		case errors.Is(err, pglock.ErrDeadlock) && r.took >= timing.NestedEndWait:
			t.Logf("ring %d: X has returned after %v without an answer of the server, and Z failed", n, r.took)
		case errors.Is(err, pglock.ErrDeadlock):
			r.deadlocks++
		case err != nil && !errors.Is(err, pglock.ErrUnavailable):
			t.Errorf("ring %d: Z: %v", n, err)
		}
		release(t, atZ)
		return r
	}
	measureRings(t, ring, func(t *testing.T, all []ringResult) {
		t.Helper()
		if n := deadlocksOf(all); n > 0 {
			t.Errorf("%d of %d calls failed because of one that had given up", n, len(all))
		}
		logTimes(t, "X has its answer after", all)
	})
}

// TestRingsUnderFaults: two calls that wait for each other, and one of them fails.
func TestRingsUnderFaults(t *testing.T) { //nolint:tparallel // the times of one are not those beside the others
	t.Parallel()
	ring := func(_ fixture, x, z *pglock.Client, n int) (r ringResult) {
		a, b := fmt.Sprint("a", n), fmt.Sprint("b", n)
		atX, atZ := acquire(t, x, a), acquire(t, z, b)
		xWaits := nestedAcquire(atX.Context(), x.Lock(b))
		<-time.After(rand.N(2 * time.Second))
		began := time.Now()
		zWaits := nestedAcquire(atZ.Context(), z.Lock(a))
		var first, second error
		select {
		case first = <-xWaits:
			r.took = time.Since(began)
			release(t, atX)
			second = locktest.Receive(t, zWaits)
			release(t, atZ)
		case first = <-zWaits:
			r.took = time.Since(began)
			release(t, atZ)
			second = locktest.Receive(t, xWaits)
			release(t, atX)
		}
		for _, err := range []error{first, second} {
			switch {
			case errors.Is(err, pglock.ErrDeadlock):
				r.deadlocks++
			case err != nil && !errors.Is(err, pglock.ErrUnavailable):
				t.Errorf("ring %d: %v", n, err)
			}
		}
		return r
	}
	measureRings(t, ring, func(t *testing.T, all []ringResult) {
		t.Helper()
		wrong := 0
		for _, r := range all {
			if r.deadlocks != 1 {
				wrong++
			}
		}
		if wrong > 0 {
			t.Errorf("in %d of %d rings none or both of the calls failed", wrong, len(all))
		}
		logTimes(t, "found after", all)
	})
}

// looks are those of a client for deadlocks.
type looks struct {
	mu       sync.Mutex
	n        int           // guarded by mu
	last     time.Time     // guarded by mu
	shortest time.Duration // guarded by mu; between two of them
}

func (l *looks) note() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if gap := now.Sub(l.last); l.n == 1 || l.n > 1 && gap < l.shortest {
		l.shortest = gap
	}
	l.n, l.last = l.n+1, now
	return l.n
}

func (l *looks) seen() (n int, shortest time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.n, l.shortest
}

// losing returns a client through a proxy that loses the replies to its first n looks, with the connections.
func losing(f fixture, n int) (*pglock.Client, *looks) {
	f.t.Helper()
	l := &looks{}
	proxy, there := f.proxied()
	proxy.OnRequest(func(r faultproxy.Request) faultproxy.Fate {
		if strings.Contains(r.SQL, ".nested_wait(") && l.note() <= n {
			return faultproxy.LoseReply
		}
		return faultproxy.Pass
	})
	return there.open(pglock.WithHolder("X")), l
}

// TestALookThatFailsIsRepeatedAtOnce: a look whose reply is lost is not put off until the next one is due. On a loaded
// machine the repetitions wait for their connection, so the shortest of ten pauses counts, and one that is shorter than
// the time between two looks.
func TestALookThatFailsIsRepeatedAtOnce(t *testing.T) {
	t.Parallel()
	const losses = 10
	f := newFixture(t)
	x, lost := losing(f, losses)
	z := f.open(pglock.WithHolder("Z"))
	atX, atZ := try(t, x, "a"), try(t, z, "b")
	zWaits := nestedAcquire(atZ.Context(), z.Lock("a"))
	until(f, "Z waits", 1, "SELECT count(*) FROM pglock.nested_waits WHERE holder = 'Z'")
	_, err := x.Acquire(atX.Context(), "b")
	fails(t, "the call that closes the cycle", err, pglock.ErrDeadlock)
	if n, shortest := lost.seen(); n <= losses || shortest > timing.DeadlockEvery*9/10 {
		t.Errorf("%d looks, the shortest pause is %v", n, shortest)
	}
	release(t, atX)
	must(t, locktest.Receive(t, zWaits))
	release(t, atZ)
}

// TestAWaitWhoseAnswersAreLostEnds: the server forgets a wait also if the client has never had an answer about it, and a
// repetition is the same wait.
func TestAWaitWhoseAnswersAreLostEnds(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	x, lost := losing(f, 1_000)
	atX, atZ := try(t, x, "a"), try(t, f.open(), "b")
	ctx, cancel := context.WithCancel(atX.Context())
	waits := leaving(ctx, x.Lock("b"))
	pgtest.Eventually(t, "replies are lost", func() bool { n, _ := lost.seen(); return n > 2 })
	is(f, "waits", 1, "SELECT count(*) FROM pglock.nested_waits WHERE number > 0")
	cancel()
	if err := locktest.Receive(t, waits); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	until(f, "the wait is forgotten", 0, "SELECT count(*) FROM pglock.nested_waits WHERE number > 0") // also no expired one
	release(t, atX)
	release(t, atZ)
}
