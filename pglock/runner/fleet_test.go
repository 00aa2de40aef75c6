package runner_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock/runner"
)

// waitCounter has the last wait that each replica has logged.
type waitCounter struct {
	mu   sync.Mutex
	last map[int]string
}

func (l *waitCounter) option(replica int) runner.WaitOption {
	return runner.WithReports(20*time.Millisecond, slog.New(waits{l, replica}))
}

func (l *waitCounter) waiting() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.last)
}

// waits is the slog.Handler of one replica.
type waits struct {
	*waitCounter
	replica int
}

func (w waits) Enabled(context.Context, slog.Level) bool { return true }
func (w waits) WithAttrs([]slog.Attr) slog.Handler       { return w }
func (w waits) WithGroup(string) slog.Handler            { return w }

func (w waits) Handle(_ context.Context, r slog.Record) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.last == nil {
		w.last = map[int]string{}
	}
	if _, holder, ok := strings.Cut(r.Message, " for "); ok {
		w.last[w.replica] = holder
	}
	return nil
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
			if !strings.HasPrefix(p, "replica-") || strings.HasPrefix(p, fmt.Sprintf("replica-%d ", i)) {
				t.Errorf("replica %d logged that it waits for %s", i, p)
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
		var waits waitCounter
		ended, opts := make(chan error, 1), append(kind.opts(t, url), waits.option(1))
		go func() { ended <- runner.Run(ctx, src, pool, opts...) }()
		pgtest.Eventually(t, locktest.Patience, "it waits", func() bool { return waits.waiting() == 1 })
		cancel()
		err := <-ended
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
