package runner_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/migrations/runner"
)

// waitCounter counts the replicas that have reported a wait.
type waitCounter struct {
	mu   sync.Mutex
	last map[int]runner.Progress
}

func (l *waitCounter) option(replica int) runner.WaitOption {
	return runner.WithProgress(20*time.Millisecond, func(p runner.Progress) {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.last == nil {
			l.last = map[int]runner.Progress{}
		}
		l.last[replica] = p
	})
}

func (l *waitCounter) waiting() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.last)
}

// TestManyReplicasStartAtOnce: one migrates, the others report its name while they wait, and all
// succeed.
func TestManyReplicasStartAtOnce(t *testing.T) {
	t.Parallel()
	eachLock(t, func(t *testing.T, kind lockKind) {
		t.Helper()
		const replicas = 8
		url, pool, note, g := newDatabase(t)
		src := source(note(1), g.SQL()+note(2), "CREATE INDEX CONCURRENTLY ON journal (version)", note(4)+"DELETE FROM journal WHERE version = 4;"+note(3)+note(4))
		var waits waitCounter
		var all sync.WaitGroup
		begin := make(chan struct{})
		for i := range replicas {
			opts := append(kind.opts(t, url), waits.option(i), runner.WithHolder(fmt.Sprintf("replica-%d", i)))
			own := pgtest.PoolOn(t, url, func(c *pgxpool.Config) { c.MaxConns = 1 })
			all.Go(func() {
				<-begin
				if err := runner.Run(t.Context(), src, own, opts...); err != nil {
					t.Errorf("replica %d: %v", i, err)
				}
			})
		}
		close(begin)
		g.Reached()
		pgtest.Eventually(t, locktest.Patience, "all others report a wait", func() bool { return waits.waiting() == replicas-1 })
		g.Open()
		all.Wait()
		wantJournal(t, pool, 4)
		wantVersion(t, pool, 4, false)
		locktest.NoLockLeft(t, pool)
		for i, p := range waits.last {
			if !strings.HasPrefix(p.Holder, "replica-") || strings.HasPrefix(p.Holder, fmt.Sprintf("replica-%d ", i)) || p.Waited <= 0 || !strings.Contains(p.String(), p.Holder) {
				t.Errorf("replica %d reported %+v: %v", i, p, p)
			}
		}
	})
}

// TestRunUpToDateNeedsNoLockAndNoRight: at most starts of a service no migration is missing.
func TestRunUpToDateNeedsNoLockAndNoRight(t *testing.T) {
	t.Parallel()
	url, pool, note, g := newDatabase(t)
	if err := runner.Run(t.Context(), source(note(1)), pool); err != nil {
		t.Fatal(err)
	}
	busy := make(chan error, 1)
	go func() { busy <- runner.Run(t.Context(), source(note(1), g.SQL()+note(2)), pool) }()
	g.Reached() // so the lock is held
	reader := locktest.PoorRole(t, url, "runner of "+t.Name())
	locktest.Exec(t, pool, "GRANT SELECT ON schema_migrations TO PUBLIC")
	ctx, cancel := context.WithTimeout(t.Context(), locktest.Patience)
	defer cancel()
	if err := runner.Run(ctx, source(note(1)), reader); err != nil {
		t.Errorf("up to date: %v", err)
	}
	g.Open()
	if err := <-busy; err != nil {
		t.Error(err)
	}
	wantJournal(t, pool, 2)
}

// TestWaitErrorNamesTheHolder after a timeout, and after the end of the caller's context.
func TestWaitErrorNamesTheHolder(t *testing.T) {
	t.Parallel()
	eachLock(t, func(t *testing.T, kind lockKind) {
		t.Helper()
		url, pool, note, g := newDatabase(t)
		src := source(g.SQL() + note(1))
		busy := make(chan error, 1)
		opts := append(kind.opts(t, url), runner.WithHolder("replica x"))
		go func() { busy <- runner.Run(t.Context(), src, pool, opts...) }()
		g.Reached()
		var held *runner.WaitError
		pgtest.Eventually(t, locktest.Patience, "the error has the time that the lock is held", func() bool {
			err := runner.Run(t.Context(), src, pool, append(kind.opts(t, url), runner.WithTimeout(500*time.Millisecond))...)
			if !errors.As(err, &held) || !errors.Is(err, runner.ErrNotAcquired) || !errors.Is(err, runner.ErrTimeout) {
				t.Fatalf("timed out: %v", err)
			}
			return held.Held >= time.Second // the text of an advisory lock has whole seconds
		})
		if !strings.HasPrefix(held.Holder, "replica x") || held.Waited < 500*time.Millisecond || !strings.Contains(held.Error(), "replica x") {
			t.Errorf("timed out: %v", held)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		cancelWait := runner.WithProgress(10*time.Millisecond, func(runner.Progress) { cancel() }) // once it waits
		err := runner.Run(ctx, src, pool, append(kind.opts(t, url), cancelWait)...)
		if !errors.As(err, &held) || !errors.Is(err, context.Canceled) || errors.Is(err, runner.ErrTimeout) || !strings.HasPrefix(held.Holder, "replica x") {
			t.Errorf("by its context: %v", err)
		}
		g.Open()
		if err := <-busy; err != nil {
			t.Error(err)
		}
		wantJournal(t, pool, 1)
		locktest.NoLockLeft(t, pool)
	})
}
