package migrations_test

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

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/migrations"
)

// TestRunStopsWhenItsLockIsLost: the migration under way is finished, and no other begun.
func TestRunStopsWhenItsLockIsLost(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, form lockForm) {
		t.Helper()
		url := pgtest.Database(t)
		pool := pgtest.PoolOn(t, url)
		note := journal(t, pool)
		g := newGate(t, pool)
		src := source(note(1), g.sql()+note(2), note(3))
		end := make(chan error, 1)
		opts := form.opts(t, url)
		lost := make(chan struct{})
		go func() { end <- migrations.RunObserved(t.Context(), src, pool, lost, opts...) }()
		g.reached()
		endLock(t, pool, form, g)
		<-lost
		g.open()
		var stopped *migrations.StoppedError
		if err := <-end; !errors.As(err, &stopped) || !errors.Is(err, migrations.ErrLost) || stopped.Version != 2 {
			t.Errorf("the run ended with %v", err)
		}
		wantJournal(t, pool, 2)
		wantVersion(t, pool, 2, false)
		if err := migrations.Run(t.Context(), src, pool, form.opts(t, url)...); err != nil {
			t.Errorf("the next run: %v", err)
		}
		wantJournal(t, pool, 3)
		wantNoLock(t, pool)
	})
}

// TestARunThatLostItsLockAndTheNextOneDoNothingTwice: the second waits for the first one's
// transaction, finds that the version has moved, and goes on from there.
func TestARunThatLostItsLockAndTheNextOneDoNothingTwice(t *testing.T) {
	t.Parallel()
	for name, before := range map[string][]string{"first version": {}, "later version": {"SELECT 1"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := pgtest.Database(t)
			pool := pgtest.PoolOn(t, url)
			note := journal(t, pool)
			g := newGate(t, pool)
			src := source(append(before, note(1)+g.sql(), note(2))...)
			first, second := make(chan error, 1), make(chan error, 1)
			go func() { first <- migrations.Run(t.Context(), src, pool) }()
			worker := g.reached()
			endLock(t, pool, forms[0], g)
			go func() { second <- migrations.Run(t.Context(), src, pool) }()
			pgtest.Eventually(t, patience, "the second waits for the first one's transaction", func() bool {
				return scan[int](t, pool, "SELECT count(*) FROM pg_stat_activity WHERE $1 = ANY(pg_blocking_pids(pid))", worker) == 1
			})
			g.open()
			if err := <-first; err != nil && !errors.Is(err, migrations.ErrLost) {
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

// TestFilesThatAreNoTransaction are carried out all the same.
func TestFilesThatAreNoTransaction(t *testing.T) {
	t.Parallel()
	pool := pgtest.PoolOn(t, pgtest.Database(t))
	note := journal(t, pool)
	if err := migrations.Run(t.Context(), source(
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

// TestAMarkOfSomebodyAtWorkIsWaitedFor: dirty means no more than begun, while its writer has the lock.
func TestAMarkOfSomebodyAtWorkIsWaitedFor(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	pool := pgtest.PoolOn(t, url)
	note := journal(t, pool)
	g := newGate(t, pool)
	wait := strings.TrimPrefix(strings.TrimSuffix(g.sql(), " END $$;"), "DO $$ BEGIN ")
	src := source("CREATE PROCEDURE p() LANGUAGE plpgsql AS $$ BEGIN COMMIT; "+wait+" END $$;", "CALL p()", note(1))
	first, second := make(chan error, 1), make(chan error, 1)
	go func() { first <- migrations.Run(t.Context(), src, pool) }()
	g.reached()
	wantVersion(t, pool, 2, true)
	var told listener
	go func() { second <- migrations.Run(t.Context(), src, pool, told.option(2)) }()
	pgtest.Eventually(t, patience, "the second waits, or has given up", func() bool { return told.waiting() == 1 || len(second) == 1 })
	g.open()
	for _, end := range []chan error{first, second} {
		if err := <-end; err != nil {
			t.Error(err)
		}
	}
	wantJournal(t, pool, 1)
	wantVersion(t, pool, 3, false)
}

// TestRunEndsWithItsContext: what was under way is undone.
func TestRunEndsWithItsContext(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	pool := pgtest.PoolOn(t, url)
	note := journal(t, pool)
	g := newGate(t, pool)
	ctx, cancel := context.WithCancelCause(t.Context())
	end := make(chan error, 1)
	go func() { end <- migrations.Run(ctx, source(note(1), note(2)+g.sql()), pool) }()
	g.reached()
	why := errors.New("the service is stopped")
	cancel(why)
	if err := <-end; !errors.Is(err, context.Canceled) || !errors.Is(err, why) {
		t.Errorf("cancelled: %v", err)
	}
	wantVersion(t, pool, 1, false)
	wantJournal(t, pool, 1)
	g.open()
	wantNoLock(t, pool)
}

// TestP30_CreateIndexConcurrentlyIsNotBlockedByWaiters: five of them poll. In the control they
// wait in golang-migrate's own lock, each with a snapshot: the server finds a deadlock.
func TestP30_CreateIndexConcurrentlyIsNotBlockedByWaiters(t *testing.T) {
	t.Parallel()
	const waiters = 5
	const index = "CREATE INDEX CONCURRENTLY late ON journal (version)"
	each(t, func(t *testing.T, form lockForm) {
		t.Helper()
		url := pgtest.Database(t)
		pool := pgtest.PoolOn(t, url)
		note := journal(t, pool)
		g := newGate(t, pool)
		src := source(g.sql()+note(1), index, note(2))
		var told listener
		var all sync.WaitGroup
		for i := range 1 + waiters {
			opts := append(form.opts(t, url), told.option(i))
			all.Go(func() {
				if err := migrations.Run(t.Context(), src, pool, opts...); err != nil {
					t.Error(err)
				}
			})
		}
		g.reached()
		pgtest.Eventually(t, patience, "the others wait", func() bool { return told.waiting() == waiters })
		g.open() // now the index is built beside them
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
			go func() { // as the driver's Lock does; one could not open a driver now
				_, err := other.Exec(t.Context(), "SELECT pg_advisory_lock((SELECT (classid::bigint << 32) | objid::bigint FROM pg_locks WHERE locktype = 'advisory' AND granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())))")
				locks <- err
			}()
		}
		pgtest.Eventually(t, patience, "the others wait", func() bool {
			return scan[int](t, pool, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())") == waiters
		})
		err := holder.Run(strings.NewReader(index))
		deadlocks := strings.Count(fmt.Sprint(err), "40P01")
		mustExec(t, pool, "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())")
		for range waiters {
			deadlocks += strings.Count(fmt.Sprint(<-locks), "40P01")
		}
		if deadlocks == 0 {
			t.Errorf("with golang-migrate's own lock nothing got in the way: %v", err)
		}
	})
}

// TestRunBehindAPoolerInTransactionMode: the lease works there, the session's lock says why not.
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
	err := migrations.Run(t.Context(), source(texts...), pgtest.PoolOn(t, through, exec))
	if !errors.Is(err, migrations.ErrPooled) {
		t.Errorf("with an advisory lock: %v", err)
	}
	if err := migrations.Up(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for range 6 {
		own := pgtest.PoolOn(t, through, exec)
		client := openClient(t, own)
		all.Go(func() {
			if err := migrations.Run(t.Context(), source(texts...), own, migrations.WithLease(client)); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	wantJournal(t, pool, 4)
	wantVersion(t, pool, 4, false)
	wantNoLock(t, pool)
}

// TestRunRecordsNamesOnlyWhereItMay: the version table may belong to another role.
func TestRunRecordsNamesOnlyWhereItMay(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	pool := pgtest.PoolOn(t, url)
	note := journal(t, pool)
	if err := migrations.Run(t.Context(), source(note(1)), pool); err != nil {
		t.Fatal(err)
	}
	other := poorRole(t, url, "runner "+fmt.Sprint(time.Now().UnixNano()))
	mustExec(t, pool, "GRANT SELECT, INSERT, UPDATE, DELETE ON schema_migrations, journal TO PUBLIC")
	if err := migrations.Run(t.Context(), source(note(1), note(2)), other); err != nil {
		t.Errorf("a role that does not own the version table: %v", err)
	}
	wantJournal(t, pool, 2)
	wantVersion(t, pool, 2, false)
}
