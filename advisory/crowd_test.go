package advisory_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/internal/pgtest"
)

// crowd is sessions of one kind that follow each other, so that one of them holds the lock at
// every moment.
type crowd struct {
	pool *pgxpool.Pool
	key  advisory.Key
	hold time.Duration
	opts []advisory.SessionOption

	mu      sync.Mutex
	holding int // guarded by mu
}

// run starts n sessions that repeat until ctx ends. Each holds the lock for c.hold. The last holder
// holds it for a third of that longer, to overlap with the next.
func (c *crowd) run(ctx context.Context, t *testing.T, n int) {
	t.Helper()
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			select {
			case <-time.After(c.hold * time.Duration(i) / time.Duration(n)):
			case <-ctx.Done():
			}
			for ctx.Err() == nil {
				s, err := advisory.Acquire(ctx, c.pool, c.key, c.opts...)
				if err != nil {
					if ctx.Err() == nil {
						t.Error(err)
					}
					return
				}
				c.add(1)
				<-time.After(c.hold)
				c.overlap()
				if err := s.Release(context.Background()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
}

// overlap returns when another session holds the lock, or has had enough time to acquire it.
func (c *crowd) overlap() {
	late := time.After(c.hold / 3)
	for {
		c.mu.Lock()
		alone := c.holding == 1
		if !alone {
			c.holding--
			c.mu.Unlock()
			return
		}
		c.mu.Unlock()
		select {
		case <-late:
			c.add(-1)
			return
		case <-time.After(time.Millisecond):
		}
	}
}

// TestP55_WriterIsNotStarved: among readers that overlap, an exclusive Acquire is granted the lock
// when the readers before it have released. The control polls the same lock without the
// turnstile, as a transaction would, and is never granted it.
func TestP55_WriterIsNotStarved(t *testing.T) {
	t.Parallel()
	const hold, rounds, patience = 300 * time.Millisecond, 5, 4 * time.Second
	direct := pgtest.Pool(t)
	readers := &crowd{pool: pgtest.Pool(t), key: advisory.NewKey("fair", t.Name()), hold: hold, opts: []advisory.SessionOption{
		advisory.WithShared(), advisory.WithKeepAliveTimeout(time.Minute)}}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { readers.run(ctx, t, 2) })
	pgtest.Eventually(t, 10*time.Second, "a reader is in", func() bool { return locksOn(t, direct, readers.key) > 0 })

	tx := begin(t, direct)
	if err := advisory.Lock(t.Context(), tx, readers.key, advisory.WithPolling(), advisory.WithTimeout(patience)); !errors.Is(err, advisory.ErrTimeout) {
		t.Errorf("the control, which asks without the turnstile: %v", err)
	}
	_ = tx.Rollback(t.Context())

	var took []time.Duration
	for range rounds {
		since := time.Now()
		s, err := advisory.Acquire(soon(t, time.Minute), direct, readers.key, advisory.WithKeepAliveTimeout(time.Minute))
		if err != nil {
			t.Fatal(err)
		}
		took = append(took, time.Since(since))
		if err := s.Release(t.Context()); err != nil {
			t.Error(err)
		}
		<-time.After(hold)
	}
	cancel()
	running.Wait()
	slices.Sort(took)
	t.Logf("the writer waited %v", took)
	if median := took[rounds/2]; median > 3*hold || took[rounds-1] > patience {
		t.Errorf("the writer waited %v, beside readers that hold for %v", took, hold)
	}
}

// TestReaderIsNotStarved: among writers of several processes that follow each other without a
// pause, a shared Acquire is granted the lock.
func TestReaderIsNotStarved(t *testing.T) {
	t.Parallel()
	const hold, rounds, patience = 300 * time.Millisecond, 5, 3 * time.Second
	direct := pgtest.Pool(t)
	key := advisory.NewKey("fair", t.Name())
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	for range 2 {
		writers := &crowd{pool: pgtest.Pool(t), key: key, hold: hold, opts: []advisory.SessionOption{advisory.WithKeepAliveTimeout(time.Minute)}}
		running.Go(func() { writers.run(ctx, t, 3) })
	}
	pgtest.Eventually(t, 10*time.Second, "a writer is in", func() bool { return locksOn(t, direct, key) > 0 })
	var took []time.Duration
	for range rounds {
		since := time.Now()
		s, err := advisory.Acquire(soon(t, time.Minute), direct, key, advisory.WithShared(), advisory.WithKeepAliveTimeout(time.Minute))
		if err != nil {
			t.Fatal(err)
		}
		took = append(took, time.Since(since))
		if err := s.Release(t.Context()); err != nil {
			t.Error(err)
		}
	}
	cancel()
	running.Wait()
	slices.Sort(took)
	t.Logf("the reader waited %v", took)
	if took[rounds-1] > patience {
		t.Errorf("the reader waited %v, beside writers that hold for %v", took, hold)
	}
}

// TestReadersAndWritersExclude: among sessions of several processes and of both kinds, some of
// which give up, a writer is alone, and a reader has no writer beside it. The control has no lock.
func TestReadersAndWritersExclude(t *testing.T) {
	t.Parallel()
	if n := overlaps(t, func(context.Context, *pgxpool.Pool, ...advisory.SessionOption) (func(), error) { return func() {}, nil }); n == 0 {
		t.Error("the control, without a lock: no overlap, then the test shows nothing")
	}
	key := advisory.NewKey("turnstile", t.Name())
	n := overlaps(t, func(ctx context.Context, pool *pgxpool.Pool, opts ...advisory.SessionOption) (func(), error) {
		s, err := advisory.Acquire(ctx, pool, key, append(opts, advisory.WithKeepAliveTimeout(time.Minute))...)
		if err != nil {
			return nil, err
		}
		return func() {
			if err := s.Release(context.Background()); err != nil {
				t.Error(err)
			}
		}, nil
	})
	if n != 0 {
		t.Errorf("%d times a writer was not alone", n)
	}
}

// overlaps returns how often a writer was not alone.
func overlaps(t *testing.T, lock func(context.Context, *pgxpool.Pool, ...advisory.SessionOption) (func(), error)) (n int) {
	t.Helper()
	var mu sync.Mutex
	readers, writers := 0, 0
	var all sync.WaitGroup
	for range 3 {
		pool := pgtest.Pool(t, func(c *pgxpool.Config) { c.MaxConns = 4 })
		for i := range 4 {
			count, opts := &writers, []advisory.SessionOption(nil)
			if i%2 == 0 {
				count, opts = &readers, []advisory.SessionOption{advisory.WithShared()}
			}
			all.Go(func() {
				for round := range 8 {
					wait := time.Minute
					if round%4 == 3 {
						wait = time.Duration(20*(i+1)) * time.Millisecond
					}
					ctx, cancel := context.WithTimeout(t.Context(), wait)
					unlock, err := lock(ctx, pool, opts...)
					cancel()
					if err != nil {
						if wait == time.Minute || !errors.Is(err, advisory.ErrNotAcquired) {
							t.Error(err)
						}
						continue
					}
					mu.Lock()
					*count++
					if writers > 1 || writers > 0 && readers > 0 {
						n++
					}
					mu.Unlock()
					<-time.After(2 * time.Millisecond)
					mu.Lock()
					*count--
					mu.Unlock()
					unlock()
				}
			})
		}
	}
	all.Wait()
	return n
}

func (c *crowd) add(n int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.holding += n
	return c.holding
}
