package runner_test

import (
	"errors"
	"testing"
	"testing/fstest"

	"github.com/golang-migrate/migrate/v4"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/migrations/runner"
)

// endLock ends the lock of the only holder: it terminates the session, or takes over the lease.
func endLock(t *testing.T, pool *pgxpool.Pool, kind lockKind, g *locktest.Gate) {
	t.Helper()
	if kind.name == "lease" {
		locktest.Exec(t, pool, "UPDATE pglock.distributed_locks SET token = pglock.next_fencing_token(), version = version + 1, expires_at = clock_timestamp() WHERE holder IS NOT NULL")
		return
	}
	if n := locktest.Scan[int](t, pool, "SELECT count(pg_terminate_backend(pid)) FROM pg_locks WHERE locktype = 'advisory' AND granted AND mode = 'ExclusiveLock' AND objid <> $1 AND database = (SELECT oid FROM pg_database WHERE datname = current_database())", g.Key); n != 1 {
		t.Fatalf("%d sessions hold the lock", n)
	}
}

// TestWrapStopsWhenItsLockIsLost: the driver finishes and records the current migration, and begins
// no other.
func TestWrapStopsWhenItsLockIsLost(t *testing.T) {
	t.Parallel()
	eachLock(t, func(t *testing.T, kind lockKind) {
		t.Helper()
		url, pool, note, g := newDatabase(t)
		d := wrapped(t, url, lockOptions(t, kind, url)...)
		// The third has no file that leads up: golang-migrate leaks a goroutine for a file that it
		// has read and not run.
		files := fstest.MapFS{"1_m.up.sql": {Data: []byte(note(1))}, "2_m.up.sql": {Data: []byte(g.SQL() + note(2))}, "3_m.down.sql": {}}
		m := migratorOf(t, d, runner.Files(files, "."))
		end := make(chan error, 1)
		go func() { end <- m.Up() }()
		g.Reached()
		endLock(t, pool, kind, g)
		pgtest.Eventually(t, locktest.Patience, "the driver has lost its lock", func() bool { return runner.Lost(d) })
		g.Open()
		var stopped *runner.StoppedError
		if err := <-end; !errors.As(err, &stopped) || !errors.Is(err, runner.ErrLost) || stopped.Version != 2 || stopped.Dirty {
			t.Errorf("the run ended with %v", err)
		}
		wantJournal(t, pool, 2)
		wantVersion(t, pool, 2, false)
		if err := m.Up(); err != nil {
			t.Errorf("the next run: %v", err)
		}
		wantVersion(t, pool, 3, false)
		locktest.NoLockLeft(t, pool)
	})
}

// TestDirtyMarkStaysIfAnotherRunHasTheLock: only the holder writes the version.
func TestDirtyMarkStaysIfAnotherRunHasTheLock(t *testing.T) {
	t.Parallel()
	url, pool, note, g := newDatabase(t)
	d := wrapped(t, url)
	end := make(chan error, 1)
	go func() { end <- migrator(t, d, g.SQL()+note(1)).Up() }()
	g.Reached()
	endLock(t, pool, lockKinds[0], g)
	pgtest.Eventually(t, locktest.Patience, "the driver has lost its lock", func() bool { return runner.Lost(d) })
	other := wrapped(t, url, runner.WithTimeout(locktest.Patience))
	m := migrator(t, other, g.SQL()+note(1))
	var dirty migrate.ErrDirty
	if err := m.Up(); !errors.As(err, &dirty) || dirty.Version != 1 {
		t.Errorf("another run meets the mark: %v", err)
	}
	if err := m.Force(0); err != nil { // as a person may
		t.Fatal(err)
	}
	g.Open()
	var stopped *runner.StoppedError
	if err := <-end; !errors.As(err, &stopped) || !errors.Is(err, runner.ErrDirty) || stopped.Version != 1 {
		t.Errorf("the run ended with %v", err)
	}
	wantVersion(t, pool, 0, false) // what the person has recorded
}
