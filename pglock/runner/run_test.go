package runner_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/migrations"
	"github.com/pglock/pglock-go/pglock/runner"
)

// TestRunStopsWhenItsLockIsLost: Run finishes the current migration, and begins no other.
func TestRunStopsWhenItsLockIsLost(t *testing.T) {
	t.Parallel()
	eachLock(t, func(t *testing.T, kind lockKind) {
		t.Helper()
		url, pool, note, g := newDatabase(t)
		src := source(note(1), g.SQL()+note(2), note(3))
		end := make(chan error, 1)
		opts := kind.opts(t, url)
		lost := make(chan struct{})
		go func() { end <- runner.RunObserved(t.Context(), src, pool, lost, opts...) }()
		g.Reached()
		endLock(t, pool, kind, g)
		<-lost
		g.Open()
		var stopped *runner.StoppedError
		if err := <-end; !errors.As(err, &stopped) || !errors.Is(err, runner.ErrLost) || stopped.Version != 2 {
			t.Errorf("the run ended with %v", err)
		}
		wantJournal(t, pool, 2)
		wantVersion(t, pool, 2, false)
		if err := runner.Run(t.Context(), src, pool, kind.opts(t, url)...); err != nil {
			t.Errorf("the next run: %v", err)
		}
		wantJournal(t, pool, 3)
		locktest.NoLockLeft(t, pool)
	})
}

// TestLostRunAndNextRunRepeatNothing: the next run waits for the transaction of the one that lost
// its lock, finds that the version has changed, and continues from there.
func TestLostRunAndNextRunRepeatNothing(t *testing.T) {
	t.Parallel()
	for name, before := range map[string][]string{"first version": {}, "later version": {"SELECT 1"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, pool, note, g := newDatabase(t)
			src := source(append(before, note(1)+g.SQL(), note(2))...)
			first, second := make(chan error, 1), make(chan error, 1)
			go func() { first <- runner.Run(t.Context(), src, pool) }()
			worker := g.Reached()
			endLock(t, pool, lockKinds[0], g)
			go func() { second <- runner.Run(t.Context(), src, pool) }()
			pgtest.Eventually(t, locktest.Patience, "the second waits for the first one's transaction", func() bool {
				return locktest.Scan[int](t, pool, "SELECT count(*) FROM pg_stat_activity WHERE $1 = ANY(pg_blocking_pids(pid))", worker) == 1
			})
			g.Open()
			if err := <-first; err != nil && !errors.Is(err, runner.ErrLost) {
				t.Errorf("the first: %v", err)
			}
			if err := <-second; err != nil {
				t.Errorf("the second: %v", err)
			}
			wantJournal(t, pool, 2)
			wantVersion(t, pool, 2+len(before), false)
		})
	}
}

// TestFilesOutsideATransaction: files that end their transaction, and files that can't be in one.
func TestFilesOutsideATransaction(t *testing.T) {
	t.Parallel()
	pool := pgtest.PoolOn(t, pgtest.Database(t))
	note := journal(t, pool)
	if err := runner.Run(t.Context(), source(
		"BEGIN;"+note(1)+"COMMIT;",
		note(2)+"CREATE PROCEDURE p() LANGUAGE plpgsql AS $$ BEGIN INSERT INTO journal VALUES (3); COMMIT; INSERT INTO journal VALUES (4); END $$;",
		"CALL p()",
		"VACUUM journal",
		"SET TRANSACTION ISOLATION LEVEL SERIALIZABLE;"+note(5),
		"", " \n -- nothing", "CREATE INDEX CONCURRENTLY ON journal (version)",
		note(6),
	), pool); err != nil {
		t.Fatal(err)
	}
	wantJournal(t, pool, 6)
	wantVersion(t, pool, 9, false)
}

// TestRunWaitsForARunningMigration: while another run holds the lock, dirty only means begun.
func TestRunWaitsForARunningMigration(t *testing.T) {
	t.Parallel()
	_, pool, note, g := newDatabase(t)
	wait := strings.Replace(g.SQL(), "SELECT", "PERFORM", 1)
	src := source("CREATE PROCEDURE p() LANGUAGE plpgsql AS $$ BEGIN COMMIT; "+wait+" END $$;", "CALL p()", note(1))
	first, second := make(chan error, 1), make(chan error, 1)
	go func() { first <- runner.Run(t.Context(), src, pool) }()
	g.Reached()
	wantVersion(t, pool, 2, true)
	var waits waitCounter
	go func() { second <- runner.Run(t.Context(), src, pool, waits.option(2)) }()
	pgtest.Eventually(t, locktest.Patience, "the second waits, or has returned", func() bool { return waits.waiting() == 1 || len(second) == 1 })
	g.Open()
	for _, end := range []chan error{first, second} {
		if err := <-end; err != nil {
			t.Error(err)
		}
	}
	wantJournal(t, pool, 1)
	wantVersion(t, pool, 3, false)
}

// TestRunEndsWithItsContext: the current migration is rolled back.
func TestRunEndsWithItsContext(t *testing.T) {
	t.Parallel()
	_, pool, note, g := newDatabase(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	end := make(chan error, 1)
	go func() { end <- runner.Run(ctx, source(note(1), note(2)+g.SQL()), pool) }()
	g.Reached()
	why := errors.New("the service is stopped")
	cancel(why)
	if err := <-end; !errors.Is(err, context.Canceled) || !errors.Is(err, why) {
		t.Errorf("cancelled: %v", err)
	}
	wantVersion(t, pool, 1, false)
	wantJournal(t, pool, 1)
	g.Open()
	locktest.NoLockLeft(t, pool)
}

// TestP30_CreateIndexConcurrentlyIsNotBlockedByWaiters: five waiters poll. In the control they
// block in golang-migrate's own lock, each with a snapshot, and the server detects a deadlock.
func TestP30_CreateIndexConcurrentlyIsNotBlockedByWaiters(t *testing.T) {
	t.Parallel()
	const waiters = 5
	const index = "CREATE INDEX CONCURRENTLY late ON journal (version)"
	eachLock(t, func(t *testing.T, kind lockKind) {
		t.Helper()
		url, pool, note, g := newDatabase(t)
		src := source(g.SQL()+note(1), index, note(2))
		var waits waitCounter
		var all sync.WaitGroup
		for i := range 1 + waiters {
			opts := append(kind.opts(t, url), waits.option(i))
			all.Go(func() {
				if err := runner.Run(t.Context(), src, pool, opts...); err != nil {
					t.Error(err)
				}
			})
		}
		g.Reached()
		pgtest.Eventually(t, locktest.Patience, "the others wait", func() bool { return waits.waiting() == waiters })
		g.Open() // now the index is built while they wait
		all.Wait()
		wantJournal(t, pool, 2)
		wantVersion(t, pool, 3, false)
	})
	t.Run("control", func(t *testing.T) {
		t.Parallel()
		url := pgtest.Database(t)
		pool := pgtest.PoolOn(t, url)
		journal(t, pool)
		holder := stock(t, url)
		if err := holder.Lock(); err != nil {
			t.Fatal(err)
		}
		locks := make(chan error, waiters)
		for range waiters {
			other, err := pgx.Connect(t.Context(), url)
			if err != nil {
				t.Fatal(err)
			}
			defer other.Close(t.Context())
			go func() { // as the driver's Lock does; a driver can't be opened now
				_, err := other.Exec(t.Context(), "SELECT pg_advisory_lock((SELECT (classid::bigint << 32) | objid::bigint FROM pg_locks WHERE locktype = 'advisory' AND granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())))")
				locks <- err
			}()
		}
		pgtest.Eventually(t, locktest.Patience, "the others wait", func() bool {
			return locktest.Scan[int](t, pool, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())") == waiters
		})
		err := holder.Run(strings.NewReader(index))
		deadlocks := strings.Count(fmt.Sprint(err), "40P01")
		locktest.Exec(t, pool, "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())")
		for range waiters {
			deadlocks += strings.Count(fmt.Sprint(<-locks), "40P01")
		}
		if deadlocks == 0 {
			t.Errorf("with golang-migrate's own lock there was no deadlock: %v", err)
		}
	})
}

// TestP35_RunBehindAPoolerInTransactionMode: a lease works there, and an advisory lock is
// ErrPooled.
func TestP35_RunBehindAPoolerInTransactionMode(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	pool := pgtest.PoolOn(t, url)
	note := journal(t, pool)
	through := pgtest.Pooler(t, url, "transaction", "default_pool_size = 20")
	exec := func(c *pgxpool.Config) {
		c.MaxConns, c.ConnConfig.DefaultQueryExecMode = 4, pgx.QueryExecModeExec
	}
	texts := []string{note(1), note(2) + note(3), "CREATE INDEX CONCURRENTLY ON journal (version)", note(4)}
	err := runner.Run(t.Context(), source(texts...), pgtest.PoolOn(t, through, exec))
	if !errors.Is(err, runner.ErrPooled) {
		t.Errorf("with an advisory lock: %v", err)
	}
	if err := migrations.Up(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for range 6 {
		own := pgtest.PoolOn(t, through, exec)
		client := locktest.ClientOn(t, own)
		all.Go(func() {
			if err := runner.Run(t.Context(), source(texts...), own, runner.WithLease(client)); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	wantJournal(t, pool, 4)
	wantVersion(t, pool, 4, false)
	locktest.NoLockLeft(t, pool)
}

// TestRunCommentsOnlyOnItsOwnTable: the version table may belong to another role.
func TestRunCommentsOnlyOnItsOwnTable(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	pool := pgtest.PoolOn(t, url)
	note := journal(t, pool)
	if err := runner.Run(t.Context(), source(note(1)), pool); err != nil {
		t.Fatal(err)
	}
	other := locktest.PoorRole(t, url, "runner "+fmt.Sprint(time.Now().UnixNano()))
	locktest.Exec(t, pool, "GRANT SELECT, INSERT, UPDATE, DELETE ON schema_migrations, journal TO PUBLIC")
	if err := runner.Run(t.Context(), source(note(1), note(2)), other); err != nil {
		t.Errorf("a role that does not own the version table: %v", err)
	}
	wantJournal(t, pool, 2)
	wantVersion(t, pool, 2, false)
}
