package migrations_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/migrations"
)

// listener counts who has been told that it waits.
type listener struct {
	mu   sync.Mutex
	last map[int]migrations.Progress
}

func (l *listener) option(replica int) migrations.WaitOption {
	return migrations.WithProgress(20*time.Millisecond, func(p migrations.Progress) {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.last == nil {
			l.last = map[int]migrations.Progress{}
		}
		l.last[replica] = p
	})
}

func (l *listener) waiting() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.last)
}

// TestManyReplicasStartAtOnce: one migrates, the others are told whom they wait for, and all go on.
func TestManyReplicasStartAtOnce(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, form lockForm) {
		t.Helper()
		const replicas = 8
		url := pgtest.Database(t)
		pool := pgtest.PoolOn(t, url)
		note := journal(t, pool)
		g := newGate(t, pool)
		src := source(note(1), g.sql()+note(2), "CREATE INDEX CONCURRENTLY ON journal (version)", note(4)+"DELETE FROM journal WHERE version = 4;"+note(3)+note(4))
		var told listener
		var all sync.WaitGroup
		begin := make(chan struct{})
		for i := range replicas {
			opts := append(form.opts(t, url), told.option(i), migrations.WithHolder(fmt.Sprintf("replica-%d", i)))
			own := pgtest.PoolOn(t, url, func(c *pgxpool.Config) { c.MaxConns = 1 })
			all.Go(func() {
				<-begin
				if err := migrations.Run(t.Context(), src, own, opts...); err != nil {
					t.Errorf("replica %d: %v", i, err)
				}
			})
		}
		close(begin)
		g.reached()
		pgtest.Eventually(t, patience, "all others are told that they wait", func() bool { return told.waiting() == replicas-1 })
		g.open()
		all.Wait()
		wantJournal(t, pool, 4)
		wantVersion(t, pool, 4, false)
		wantNoLock(t, pool)
		for i, p := range told.last {
			if !strings.HasPrefix(p.Holder, "replica-") || strings.HasPrefix(p.Holder, fmt.Sprintf("replica-%d ", i)) || p.Waited <= 0 || !strings.Contains(p.String(), p.Holder) {
				t.Errorf("replica %d was told %+v: %v", i, p, p)
			}
		}
	})
}

// TestUpToDateNeedsNoLockAndNoRight: most starts of a service find nothing to do.
func TestRunUpToDateNeedsNoLockAndNoRight(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	pool := pgtest.PoolOn(t, url)
	note := journal(t, pool)
	g := newGate(t, pool)
	if err := migrations.Run(t.Context(), source(note(1)), pool); err != nil {
		t.Fatal(err)
	}
	busy := make(chan error, 1)
	go func() { busy <- migrations.Run(t.Context(), source(note(1), g.sql()+note(2)), pool) }()
	g.reached() // so the lock is held
	reader := poorRole(t, url, "runner of "+t.Name())
	mustExec(t, pool, "GRANT SELECT ON schema_migrations TO PUBLIC")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := migrations.Run(ctx, source(note(1)), reader); err != nil {
		t.Errorf("up to date: %v", err)
	}
	g.open()
	if err := <-busy; err != nil {
		t.Error(err)
	}
	wantJournal(t, pool, 2)
}

// TestWaitErrorTellsWhoHoldsTheLock: by time-out and by the caller's context.
func TestWaitErrorTellsWhoHoldsTheLock(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, form lockForm) {
		t.Helper()
		url := pgtest.Database(t)
		pool := pgtest.PoolOn(t, url)
		note := journal(t, pool)
		g := newGate(t, pool)
		src := source(g.sql() + note(1))
		busy := make(chan error, 1)
		opts := append(form.opts(t, url), migrations.WithHolder("replica x"))
		go func() { busy <- migrations.Run(t.Context(), src, pool, opts...) }()
		g.reached()
		var held *migrations.WaitError
		pgtest.Eventually(t, patience, "the error tells for how long", func() bool {
			err := migrations.Run(t.Context(), src, pool, append(form.opts(t, url), migrations.WithTimeout(500*time.Millisecond))...)
			if !errors.As(err, &held) || !errors.Is(err, migrations.ErrNotAcquired) || !errors.Is(err, migrations.ErrTimeout) {
				t.Fatalf("timed out: %v", err)
			}
			return held.Held >= time.Second // the text of an advisory lock has whole seconds
		})
		if !strings.HasPrefix(held.Holder, "replica x") || held.Waited < 500*time.Millisecond || !strings.Contains(held.Error(), "replica x") {
			t.Errorf("timed out: %v", held)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		leave := migrations.WithProgress(10*time.Millisecond, func(migrations.Progress) { cancel() }) // once it waits
		err := migrations.Run(ctx, src, pool, append(form.opts(t, url), leave)...)
		if !errors.As(err, &held) || !errors.Is(err, context.Canceled) || errors.Is(err, migrations.ErrTimeout) || !strings.HasPrefix(held.Holder, "replica x") {
			t.Errorf("by its context: %v", err)
		}
		g.open()
		if err := <-busy; err != nil {
			t.Error(err)
		}
		wantJournal(t, pool, 1)
		wantNoLock(t, pool)
	})
}
