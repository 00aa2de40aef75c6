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

	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/runner"
)

// TestP30_ManyReplicasStartAtOnce: one migrates, the others report its name while they wait, and all
// succeed. Since the waiters hold no snapshot, CREATE INDEX CONCURRENTLY does not wait for them.
func TestP30_ManyReplicasStartAtOnce(t *testing.T) {
	t.Parallel()
	eachLock(t, func(f *fixture) {
		const replicas = 8
		src := source(note(1), f.gate.SQL()+note(2), "CREATE INDEX CONCURRENTLY ON journal (version)", note(4)+"DELETE FROM journal WHERE version = 4;"+note(3)+note(4))
		var waits waitCounter
		var all sync.WaitGroup
		begin := make(chan struct{})
		for i := range replicas {
			name := fmt.Sprintf("replica-%d", i)
			opts := f.opts(waits.option(name), runner.WithHolder(name))
			own := pgtest.PoolOn(f.T, f.url, func(c *pgxpool.Config) { c.MaxConns = 1 })
			all.Go(func() {
				<-begin
				if err := runner.Run(f.Context(), src, own, opts...); err != nil {
					f.Errorf("%s: %v", name, err)
				}
			})
		}
		close(begin)
		f.gate.Reached()
		for name, holder := range waits.reached(f.T, replicas-1) {
			if !strings.HasPrefix(holder, "replica-") || strings.HasPrefix(holder+" ", name+" ") {
				f.Errorf("%s logged that it waits for %s", name, holder)
			}
		}
		f.gate.Open()
		all.Wait()
		f.want(4, false, 4)
	})
}

// TestP30_WaitersOfGolangMigrateHoldSnapshots is the control: they block in the server, each with a
// snapshot, and the server detects a deadlock.
func TestP30_WaitersOfGolangMigrateHoldSnapshots(t *testing.T) {
	t.Parallel()
	const waiters = 5
	f := newFixture(t)
	f.gate.Open()
	holder := stock(t, f.url)
	ok(t, holder.Lock())
	locks := make(chan error, waiters)
	for range waiters {
		other, err := pgx.Connect(t.Context(), f.url)
		ok(t, err)
		defer other.Close(t.Context())
		go func() { // as the driver's Lock does; a driver can't be opened now
			_, err := other.Exec(t.Context(), "SELECT pg_advisory_lock((SELECT (classid::bigint << 32) | objid::bigint FROM pg_locks WHERE locktype = 'advisory' AND granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())))")
			locks <- err
		}()
	}
	pgtest.Eventually(t, "the others wait", func() bool {
		return locktest.Scan[int](t, f.pool, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())") == waiters
	})
	err := holder.Run(strings.NewReader("CREATE INDEX CONCURRENTLY late ON journal (version)"))
	deadlocks := strings.Count(fmt.Sprint(err), "40P01")
	f.exec("SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())")
	for range waiters {
		deadlocks += strings.Count(fmt.Sprint(<-locks), "40P01")
	}
	if deadlocks == 0 {
		t.Errorf("with golang-migrate's own lock there was no deadlock: %v", err)
	}
}

// TestRunUpToDateNeedsNoLockAndNoRight: at most starts of a service no migration is missing.
func TestRunUpToDateNeedsNoLockAndNoRight(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.wantNil(f.start(source(note(1))))
	busy := f.start(source(note(1), f.gate.SQL()+note(2)))
	f.gate.Reached() // so the lock is held
	reader := locktest.PoorRole(t, f.url, "runner of "+t.Name())
	f.exec("GRANT SELECT ON schema_migrations, schema_migrations_files TO PUBLIC")
	ctx, cancel := context.WithTimeout(t.Context(), pgtest.Patience)
	defer cancel()
	if err := runner.Run(ctx, source(note(1)), reader); err != nil {
		t.Errorf("up to date: %v", err)
	}
	f.gate.Open()
	f.wantNil(busy)
	// A role that does not own the version table can't comment on it.
	f.exec("GRANT SELECT, INSERT, UPDATE, DELETE ON schema_migrations, schema_migrations_files, journal TO PUBLIC")
	if err := runner.Run(ctx, source(note(1), note(2), note(3)), reader, runner.AllowChanged(2)); err != nil {
		t.Errorf("a role that does not own the version table: %v", err)
	}
	f.want(3, false, 3)
}

// TestRunStopsWhenALockIsLost: Run finishes the current migration, and begins no other. With WithKey
// it has two locks, and the loss of the other program's lock stops it too.
func TestRunStopsWhenALockIsLost(t *testing.T) {
	t.Parallel()
	eachLock(t, func(f *fixture) {
		src := source(note(1), f.gate.SQL()+note(2), note(3), note(4))
		lost := make(chan struct{})
		end := f.start(src, runner.WithLost(lost))
		f.gate.Reached()
		f.endLock()
		<-lost
		f.gate.Open()
		if err := <-end; !errors.Is(err, pglock.ErrLost) || !strings.Contains(err.Error(), "stopped at version 2") {
			f.Errorf("the run ended with %v", err)
		}
		f.want(2, false, 2)
		f.gate = locktest.NewGate(f.T, f.pool)
		lost = make(chan struct{})
		end = f.start(source(note(1), note(2), f.gate.SQL()+note(3), note(4)), runner.WithKey(7), runner.WithLost(lost), runner.AllowChanged(2))
		f.gate.Reached()
		f.endSessions("objid = 7")
		<-lost
		f.gate.Open()
		if err := <-end; !errors.Is(err, pglock.ErrLost) {
			f.Errorf("the run whose other lock was lost ended with %v", err)
		}
		f.want(3, false, 3)
		f.wantNil(f.start(src, runner.AllowChanged(3)))
		f.want(4, false, 4)
	})
}

// TestLostRunAndNextRunRepeatNothing: the next run waits for the transaction of the one that lost
// its lock, finds that the version has changed, and continues from there.
func TestLostRunAndNextRunRepeatNothing(t *testing.T) {
	t.Parallel()
	for name, before := range map[string][]string{"first version": {}, "later version": {"SELECT 1"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			src := source(append(before, note(1)+f.gate.SQL(), note(2))...)
			first := f.start(src)
			worker := f.gate.Reached()
			f.endLock()
			second := f.start(src)
			pgtest.Eventually(t, "the second waits for the first one's transaction", func() bool {
				return locktest.Scan[int](t, f.pool, "SELECT count(*) FROM pg_stat_activity WHERE $1 = ANY(pg_blocking_pids(pid))", worker) == 1
			})
			f.gate.Open()
			if err := <-first; err != nil && !errors.Is(err, pglock.ErrLost) {
				t.Errorf("the first: %v", err)
			}
			f.wantNil(second)
			f.want(2+len(before), false, 2)
		})
	}
}

// TestFilesOutsideATransaction: files that end their transaction, and files that can't be in one.
func TestFilesOutsideATransaction(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.wantNil(f.start(source(
		"BEGIN;"+note(1)+"COMMIT;",
		note(2)+"CREATE PROCEDURE p() LANGUAGE plpgsql AS $$ BEGIN INSERT INTO journal VALUES (3); COMMIT; INSERT INTO journal VALUES (4); END $$;",
		"CALL p()",
		"VACUUM journal",
		"SET TRANSACTION ISOLATION LEVEL SERIALIZABLE;"+note(5),
		"", " \n -- nothing", "CREATE INDEX CONCURRENTLY ON journal (version)",
		note(6),
	)))
	f.want(9, false, 6)
}

// TestRunEndsWithItsContext: the current migration is rolled back.
func TestRunEndsWithItsContext(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	end := make(chan error, 1)
	go func() { end <- runner.Run(ctx, source(note(1), note(2)+f.gate.SQL()), f.pool) }()
	f.gate.Reached()
	why := errors.New("the service is stopped")
	cancel(why)
	if err := <-end; !errors.Is(err, context.Canceled) || !errors.Is(err, why) {
		t.Errorf("cancelled: %v", err)
	}
	f.want(1, false, 1)
	f.noLockLeft()
}

// TestAllowNewer: a replica of an earlier release restarts while a later one migrates, and after it.
// While another run holds the lock, dirty only means begun, so a replica of either release waits.
func TestAllowNewer(t *testing.T) {
	t.Parallel()
	eachLock(t, func(f *fixture) {
		later, earlier := source(note(1), "COMMIT;"+f.gate.SQL()+note(2)), source(note(1))
		end := f.start(later)
		f.gate.Reached()
		f.want(2, true, 1)
		var waits waitCounter
		same := f.start(later, waits.option("same"))
		older := f.start(earlier, waits.option("older"), runner.AllowNewer())
		waits.reached(f.T, 2)
		f.gate.Open()
		f.wantNil(end, same, older, f.start(earlier, runner.AllowNewer()))
		if err := f.run(earlier); !errors.Is(err, runner.ErrUnknownVersion) {
			f.Errorf("control, without the option: %v", err)
		}
		f.want(2, false, 2)
		// A later release can't have a version below the last one of this source.
		f.exec("UPDATE schema_migrations SET version = 0")
		err := f.run(earlier, runner.AllowNewer())
		if !errors.Is(err, runner.ErrUnknownVersion) || strings.Contains(err.Error(), "AllowNewer") {
			f.Errorf("a version in between: %v", err)
		}
	})
}

// TestWaitErrorNamesTheHolder after a timeout, and after the end of the caller's context.
func TestWaitErrorNamesTheHolder(t *testing.T) {
	t.Parallel()
	eachLock(t, func(f *fixture) {
		src := source(f.gate.SQL() + note(1))
		busy := f.start(src, runner.WithHolder("replica x"))
		f.gate.Reached()
		var held *pglock.WaitError
		err := f.run(src, runner.WithTimeout(500*time.Millisecond))
		if !errors.As(err, &held) || !errors.Is(err, pglock.ErrNotAcquired) || !errors.Is(err, pglock.ErrTimeout) ||
			held.Waited < 500*time.Millisecond || !strings.Contains(err.Error(), ": held by replica x") {
			f.Errorf("timed out: %v", err)
		}
		ctx, cancel := context.WithCancel(f.Context())
		defer cancel()
		var waits waitCounter
		ended, opts := make(chan error, 1), f.opts(waits.option("waiter"))
		go func() { ended <- runner.Run(ctx, src, f.pool, opts...) }()
		waits.reached(f.T, 1)
		cancel()
		err = <-ended
		if !errors.As(err, &held) || !errors.Is(err, context.Canceled) || errors.Is(err, pglock.ErrTimeout) || !strings.Contains(err.Error(), ": held by replica x") {
			f.Errorf("by its context: %v", err)
		}
		f.gate.Open()
		f.wantNil(busy)
		f.want(1, false, 1)
	})
}

// TestHolderIsReadTwiceIfItIsNew: one statement reads pg_locks and pg_stat_activity one after the
// other, so a session that was granted the lock in between is in one of them only. The waiter reads
// again. A view stands in for pg_stat_activity, and shows the old state at the first read.
func TestHolderIsReadTwiceIfItIsNew(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	src := source(f.gate.SQL() + note(1))
	busy := f.start(src, runner.WithHolder("replica x"))
	f.gate.Reached()
	f.exec("CREATE SCHEMA shadow; CREATE SEQUENCE shadow.looks")
	f.exec("CREATE VIEW shadow.pg_stat_activity AS SELECT * FROM pg_catalog.pg_stat_activity WHERE (SELECT nextval('shadow.looks')) > 1")
	shadowed := pgtest.PoolOn(t, f.url, func(c *pgxpool.Config) {
		c.ConnConfig.RuntimeParams["search_path"] = "shadow, pg_catalog, public"
	})
	err := runner.Run(t.Context(), src, shadowed, runner.WithVersionTable("public", "schema_migrations"), runner.WithTimeout(500*time.Millisecond))
	var held *pglock.WaitError
	if !errors.As(err, &held) || !strings.Contains(err.Error(), ": held by replica x (") {
		t.Errorf("the waiter's error: %v", err)
	}
	if looks := locktest.Scan[int](t, f.pool, "SELECT last_value FROM shadow.looks"); looks != 2 {
		t.Errorf("the view was read %d times", looks)
	}
	f.gate.Open()
	f.wantNil(busy)
}

// TestP35_RunBehindAPoolerInTransactionMode: a lease works there, and an advisory lock is
// advisory.ErrPooled.
func TestP35_RunBehindAPoolerInTransactionMode(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.gate.Open()
	through := pgtest.Pooler(t, f.url, "transaction", "default_pool_size = 20")
	exec := func(c *pgxpool.Config) {
		c.MaxConns, c.ConnConfig.DefaultQueryExecMode = 4, pgx.QueryExecModeExec
	}
	src := source(note(1), note(2)+note(3), "CREATE INDEX CONCURRENTLY ON journal (version)", note(4))
	err := runner.Run(t.Context(), src, pgtest.PoolOn(t, through, exec))
	if !errors.Is(err, advisory.ErrPooled) {
		t.Errorf("with an advisory lock: %v", err)
	}
	locktest.Client(t, f.url) // creates the tables
	var all sync.WaitGroup
	for range 6 {
		own := pgtest.PoolOn(t, through, exec)
		client := locktest.ClientOn(t, own)
		all.Go(func() {
			if err := runner.Run(t.Context(), src, own, runner.WithLease(client)); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	f.want(4, false, 4)
	f.noLockLeft()
}
