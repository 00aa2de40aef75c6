package adapters_test

import (
	"errors"
	"testing"
	"time"

	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/gooselock"
)

// TestI1_P42_OldAndNewGooseReplicasExclude: a replica of an earlier release migrates with goose's
// own session locker, one of the new release with a SessionLocker and WithKey, in both orders. In
// the control without WithKey, both run the migration at once.
func TestI1_P42_OldAndNewGooseReplicasExclude(t *testing.T) {
	t.Parallel()
	if gooselock.DefaultKey != lock.DefaultLockID {
		t.Fatalf("goose's default lock is %d", lock.DefaultLockID)
	}
	for name, c := range map[string]struct{ oldFirst, key bool }{
		"old first":          {true, true},
		"new first":          {false, true},
		"control, old first": {true, false},
		"control, new first": {false, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := pgtest.Database(t)
			pool := pgtest.PoolOn(t, url)
			locktest.Exec(t, pool, "CREATE TABLE journal (n int)")
			g := locktest.NewGate(t, pool)
			files := gooseFiles("SELECT 1;", g.SQL()+" INSERT INTO journal VALUES (2);")
			provider := func(l lock.SessionLocker, err error) *goose.Provider {
				t.Helper()
				if err != nil {
					t.Fatal(err)
				}
				p, err := goose.NewProvider(goose.DialectPostgres, openDB(t, url), files, goose.WithSessionLocker(l))
				if err != nil {
					t.Fatal(err)
				}
				return p
			}
			var opts []gooselock.Option
			if c.key {
				opts = append(opts, gooselock.WithKey(gooselock.DefaultKey))
			}
			renewed := func(more ...gooselock.Option) *goose.Provider {
				t.Helper()
				l, err := gooselock.NewSessionLocker("m", append(opts, more...)...)
				return provider(l, err)
			}
			first, second := provider(lock.NewPostgresSessionLocker(lock.WithLockTimeout(1, 60))), renewed()
			if !c.oldFirst {
				first, second = second, first
			}
			ends := make(chan error, 2)
			go func() { _, err := first.Up(t.Context()); ends <- err }()
			g.Reached()
			go func() { _, err := second.Up(t.Context()); ends <- err }()
			if !c.key {
				pgtest.Eventually(t, "both run the migration", func() bool { return g.Waiting() == 2 })
				g.Open()
				first, second := <-ends, <-ends
				if n := locktest.Scan[int](t, pool, "SELECT count(*) FROM journal"); n != 2 && first == nil && second == nil {
					t.Errorf("control: %d runs of the migration, and no error", n)
				}
				return
			}
			// The second one polls: its statements are in pg_stat_activity, and it does not
			// migrate.
			pgtest.Eventually(t, "the second one polls", func() bool {
				return locktest.Scan[int](t, pool, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle' AND query LIKE 'SELECT pg_try_advisory_lock%'") > 0
			})
			if c.oldFirst {
				_, err := renewed(gooselock.WithTimeout(5 * time.Second)).Up(t.Context())
				if !errors.Is(err, pglock.ErrNotAcquired) || !errors.Is(err, pglock.ErrTimeout) {
					t.Errorf("a new one, timed out: %v", err)
				}
			}
			if n := g.Waiting(); n != 1 {
				t.Errorf("%d run the migration", n)
			}
			g.Open()
			for range 2 {
				if err := <-ends; err != nil {
					t.Error(err)
				}
			}
			if n := locktest.Scan[int](t, pool, "SELECT count(*) FROM journal"); n != 1 {
				t.Errorf("the migration ran %d times", n)
			}
			locktest.NoLockLeft(t, pgtest.PoolOn(t, url))
		})
	}
}

// TestAGooseReleaseWithoutTheKeyExcludesOneWithIt, so that the next release can drop the option.
func TestAGooseReleaseWithoutTheKeyExcludesOneWithIt(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	db := openDB(t, url)
	lockers := make([]*gooselock.SessionLocker, 3)
	for i, opts := range [][]gooselock.Option{{gooselock.WithKey(7)}, {gooselock.WithTimeout(3 * time.Second)}, nil} {
		var err error
		if lockers[i], err = gooselock.NewSessionLocker("m", opts...); err != nil {
			t.Fatal(err)
		}
	}
	with, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer with.Close()
	without, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer without.Close()
	if err := lockers[0].SessionLock(t.Context(), with); err != nil {
		t.Fatal(err)
	}
	if err := lockers[1].SessionLock(t.Context(), without); !errors.Is(err, pglock.ErrNotAcquired) {
		t.Errorf("without the key while one with it migrates: %v", err)
	}
	if err := lockers[0].SessionUnlock(t.Context(), with); err != nil {
		t.Error(err)
	}
	again, err := db.Conn(t.Context()) // a timeout may have closed the other one
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if err := lockers[2].SessionLock(t.Context(), again); err != nil {
		t.Error(err)
	}
	if err := lockers[2].SessionUnlock(t.Context(), again); err != nil {
		t.Error(err)
	}
	if _, err := gooselock.NewLocker(locktest.Client(t, url), "m", gooselock.WithKey(7)); !errors.Is(err, pglock.ErrInvalidOption) {
		t.Errorf("a lease with a number: %v", err)
	}
	locktest.NoLockLeft(t, pgtest.PoolOn(t, url))
}
