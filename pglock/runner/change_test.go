package runner_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/golang-migrate/migrate/v4/database"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock/runner"
)

// locking counts the sessions that hold an advisory lock of that number, or that wait for it.
func locking(t *testing.T, pool *pgxpool.Pool, key int64, granted bool) int {
	t.Helper()
	return locktest.Scan[int](t, pool, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 AND (classid::bigint << 32) | objid::bigint = $1 AND granted = $2 AND database = (SELECT oid FROM pg_database WHERE datname = current_database())", key, granted)
}

// TestI1_P42_OldAndNewReplicasExclude: a replica of an earlier release migrates with
// golang-migrate's own lock, one of the new release with Run or Wrap and WithKey. In the control,
// without WithKey, neither waits for the other.
func TestI1_P42_OldAndNewReplicasExclude(t *testing.T) {
	t.Parallel()
	eachLock(t, func(t *testing.T, kind lockKind) {
		t.Helper()
		for _, with := range []bool{true, false} {
			url := pgtest.Database(t)
			pool := pgtest.PoolOn(t, url)
			key := runner.GolangMigrateKey(pool.Config().ConnConfig.Database, "public", "schema_migrations")
			opts := append(lockOptions(t, kind, url), runner.WithTimeout(locktest.Patience))
			if with {
				opts = append(opts, runner.WithKey(key), runner.WithTimeout(500*time.Millisecond))
			}
			var waits waitCounter
			old, renewed, patient := stock(t, url), wrapped(t, url, opts...), wrapped(t, url, append(opts, runner.WithTimeout(locktest.Patience), waits.option(1))...)

			// The old one migrates.
			if err := old.Lock(); err != nil {
				t.Fatal(err)
			}
			var held *runner.WaitError
			err := renewed.Lock()
			if with && (!errors.As(err, &held) || !errors.Is(err, runner.ErrTimeout) || !strings.HasPrefix(held.Holder, "server process ")) {
				t.Errorf("Wrap while an old replica migrates: %v", err)
			}
			if !with && err != nil {
				t.Errorf("control: Wrap while an old replica migrates: %v", err)
			}
			wantUnlocked(t, renewed, !with)
			if err := old.SetVersion(1, true); err != nil { // as it does before a migration
				t.Fatal(err)
			}
			var runOpts []runner.RunOption
			for _, o := range opts {
				runOpts = append(runOpts, o)
			}
			err = runner.Run(t.Context(), source("SELECT 1"), pool, runOpts...)
			if with && !errors.Is(err, runner.ErrNotAcquired) {
				t.Errorf("Run while an old replica migrates: %v", err)
			}
			if !with && !errors.Is(err, runner.ErrDirty) { // it takes the mark of a running migration for that of a dead process
				t.Errorf("control: Run while an old replica migrates: %v", err)
			}
			waiting := make(chan error, 1)
			go func() { waiting <- patient.Lock() }()
			if with {
				pgtest.Eventually(t, locktest.Patience, "the new one waits for the old one", func() bool { return waits.waiting() == 1 })
			}
			if err := old.SetVersion(1, false); err != nil {
				t.Fatal(err)
			}
			if err := old.Unlock(); err != nil {
				t.Fatal(err)
			}
			if err := <-waiting; err != nil {
				t.Errorf("the new one after the old one: %v", err)
			}

			// The new one migrates.
			oldLocked := make(chan error, 1)
			go func() { oldLocked <- old.Lock() }()
			if with {
				pgtest.Eventually(t, locktest.Patience, "the old one waits", func() bool { return locking(t, pool, key, false) == 1 })
				wantUnlocked(t, patient, true)
			}
			if err := <-oldLocked; err != nil {
				t.Errorf("the old one after the new one: %v", err)
			}
			if !with {
				wantUnlocked(t, patient, true) // the control: the old one was granted its lock while the new one had its own
			}
			if err := old.Unlock(); err != nil {
				t.Fatal(err)
			}
			locktest.NoLockLeft(t, pool)
		}
	})
}

// wantUnlocked unlocks the driver, and fails the test unless it was locked as expected.
func wantUnlocked(t *testing.T, d database.Driver, held bool) {
	t.Helper()
	if err := d.Unlock(); held == errors.Is(err, database.ErrNotLocked) || held && err != nil {
		t.Errorf("Unlock: %v", err)
	}
}

// TestAReleaseWithoutTheKeyExcludesOneWithIt, so that the next release can drop the option.
func TestAReleaseWithoutTheKeyExcludesOneWithIt(t *testing.T) {
	t.Parallel()
	eachLock(t, func(t *testing.T, kind lockKind) {
		t.Helper()
		url := pgtest.Database(t)
		with := wrapped(t, url, append(lockOptions(t, kind, url), runner.WithKey(7))...)
		hasty := wrapped(t, url, append(lockOptions(t, kind, url), runner.WithTimeout(300*time.Millisecond))...)
		without := wrapped(t, url, lockOptions(t, kind, url)...)
		if err := with.Lock(); err != nil {
			t.Fatal(err)
		}
		if err := hasty.Lock(); !errors.Is(err, runner.ErrNotAcquired) {
			t.Errorf("without the key while one with it migrates: %v", err)
		}
		if err := with.Unlock(); err != nil {
			t.Error(err)
		}
		if err := without.Lock(); err != nil {
			t.Error(err)
		}
		wantUnlocked(t, without, true)
		locktest.NoLockLeft(t, pgtest.PoolOn(t, url))
	})
}

// TestLossOfTheOtherLockStopsTheRun before the next migration, as the loss of its own lock does.
func TestLossOfTheOtherLockStopsTheRun(t *testing.T) {
	t.Parallel()
	eachLock(t, func(t *testing.T, kind lockKind) {
		t.Helper()
		url, pool, note, g := newDatabase(t)
		lost, end := make(chan struct{}), make(chan error, 1)
		opts := append(kind.opts(t, url), runner.WithKey(7))
		go func() {
			end <- runner.RunObserved(t.Context(), source(g.SQL()+note(1), note(2)), pool, lost, opts...)
		}()
		g.Reached()
		locktest.Exec(t, pool, "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND objid = 7 AND database = (SELECT oid FROM pg_database WHERE datname = current_database())")
		<-lost
		g.Open()
		var stopped *runner.StoppedError
		if err := <-end; !errors.As(err, &stopped) || !errors.Is(err, runner.ErrLost) || stopped.Version != 1 {
			t.Errorf("the run ended with %v", err)
		}
		wantVersion(t, pool, 1, false)
		locktest.NoLockLeft(t, pool)
	})
}

// TestAllowNewer: a replica of an earlier release restarts while a later one migrates, and after
// it.
func TestAllowNewer(t *testing.T) {
	t.Parallel()
	eachLock(t, func(t *testing.T, kind lockKind) {
		t.Helper()
		url, pool, note, g := newDatabase(t)
		later, earlier := source(note(1), "COMMIT;"+g.SQL()+note(2)), source(note(1))
		end := make(chan error, 1)
		opts := kind.opts(t, url)
		go func() { end <- runner.Run(t.Context(), later, pool, opts...) }()
		g.Reached()
		wantVersion(t, pool, 2, true)
		var waits waitCounter
		pod := make(chan error, 1)
		podOpts := append(kind.opts(t, url), waits.option(1), runner.AllowNewer())
		go func() { pod <- runner.Run(t.Context(), earlier, pool, podOpts...) }()
		pgtest.Eventually(t, locktest.Patience, "the earlier one waits, or has returned", func() bool { return waits.waiting() == 1 || len(pod) == 1 })
		g.Open()
		for _, c := range []chan error{end, pod} {
			if err := <-c; err != nil {
				t.Error(err)
			}
		}
		if err := runner.Run(t.Context(), earlier, pool, runner.AllowNewer()); err != nil {
			t.Errorf("after the later one: %v", err)
		}
		if err := runner.Run(t.Context(), earlier, pool); !errors.Is(err, runner.ErrUnknownVersion) {
			t.Errorf("control, without the option: %v", err)
		}
		wantVersion(t, pool, 2, false)
		wantJournal(t, pool, 2)
		// A later release can't have a version below the last one of this source.
		locktest.Exec(t, pool, "UPDATE schema_migrations SET version = 0")
		err := runner.Run(t.Context(), earlier, pool, runner.AllowNewer())
		if !errors.Is(err, runner.ErrUnknownVersion) || strings.Contains(err.Error(), "AllowNewer") {
			t.Errorf("a version in between: %v", err)
		}
	})
}
