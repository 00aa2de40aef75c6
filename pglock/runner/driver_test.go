package runner_test

import (
	"context"
	"database/sql"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golang-migrate/migrate/v4"
	"github.com/golang-migrate/migrate/v4/database"
	migratepgx "github.com/golang-migrate/migrate/v4/database/pgx/v5"
	dt "github.com/golang-migrate/migrate/v4/database/testing"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver that golang-migrate's uses

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock/runner"
)

// stock opens golang-migrate's own driver.
func stock(t *testing.T, url string) database.Driver {
	t.Helper()
	db, err := sql.Open("pgx", url)
	if err != nil {
		t.Fatal(err)
	}
	d, err := migratepgx.WithInstance(db, &migratepgx.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() }) // a second time for those that the test closes
	return d
}

func wrapped(t *testing.T, url string, opts ...runner.LockOption) *runner.Driver {
	t.Helper()
	d, err := runner.Wrap(t.Context(), stock(t, url), pgtest.PoolOn(t, url), opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// migrator returns golang-migrate on a driver.
func migrator(t *testing.T, d database.Driver, texts ...string) *migrate.Migrate {
	t.Helper()
	src, err := source(texts...)()
	if err != nil {
		t.Fatal(err)
	}
	m, err := migrate.NewWithInstance("test", src, "pgx5", d)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// lockOptions returns the options of a lock for Wrap.
func lockOptions(t *testing.T, kind lockKind, url string) (opts []runner.LockOption) {
	t.Helper()
	for _, o := range kind.opts(t, url) {
		opts = append(opts, o.(runner.LockOption))
	}
	return opts
}

// TestWrapPassesGolangMigratesOwnSuite: golang-migrate has a suite for drivers.
func TestWrapPassesGolangMigratesOwnSuite(t *testing.T) {
	t.Parallel()
	eachLock(t, func(t *testing.T, kind lockKind) {
		t.Helper()
		url := pgtest.Database(t)
		dt.Test(t, wrapped(t, url, lockOptions(t, kind, url)...), []byte("SELECT 1"))
		other := pgtest.Database(t)
		dt.TestMigrate(t, migrator(t, wrapped(t, other, lockOptions(t, kind, other)...), "CREATE TABLE a ()"))
	})
}

// unlocked is golang-migrate's driver without its lock. Version returns when all drivers have
// called it.
type unlocked struct {
	database.Driver
	all *sync.WaitGroup
}

func (u unlocked) Version() (int, bool, error) {
	version, dirty, err := u.Driver.Version()
	u.all.Done()
	u.all.Wait()
	return version, dirty, err
}

func (unlocked) Lock() error   { return nil }
func (unlocked) Unlock() error { return nil }

// TestI1_P42_WrapExcludes: of two runs with golang-migrate one applies the migration. The control,
// without a lock, applies it twice.
func TestI1_P42_WrapExcludes(t *testing.T) {
	t.Parallel()
	twice := func(t *testing.T, url string, open func() database.Driver, meet func(g *locktest.Gate, begun func() int)) {
		t.Helper()
		pool := pgtest.PoolOn(t, url)
		note := journal(t, pool)
		g := locktest.NewGate(t, pool)
		var all sync.WaitGroup
		for range 2 {
			m := migrator(t, open(), g.SQL()+note(1))
			all.Go(func() {
				if err := m.Up(); err != nil && !errors.Is(err, migrate.ErrNoChange) {
					t.Error(err)
				}
			})
		}
		meet(g, g.Waiting)
		g.Open()
		all.Wait()
	}
	eachLock(t, func(t *testing.T, kind lockKind) {
		t.Helper()
		url := pgtest.Database(t)
		var waits waitCounter
		n := 0
		twice(t, url, func() database.Driver {
			n++
			return wrapped(t, url, append(lockOptions(t, kind, url), waits.option(n))...)
		}, func(g *locktest.Gate, begun func() int) {
			g.Reached()
			pgtest.Eventually(t, locktest.Patience, "the other one waits", func() bool { return waits.waiting() == 1 })
			if n := begun(); n != 1 {
				t.Errorf("%d runs have begun the migration", n)
			}
		})
		pool := pgtest.PoolOn(t, url)
		wantJournal(t, pool, 1)
		locktest.NoLockLeft(t, pool)
	})
	t.Run("control", func(t *testing.T) {
		t.Parallel()
		url := pgtest.Database(t)
		var both sync.WaitGroup
		both.Add(2)
		twice(t, url, func() database.Driver { return unlocked{stock(t, url), &both} }, func(_ *locktest.Gate, begun func() int) {
			pgtest.Eventually(t, locktest.Patience, "both run the migration", func() bool { return begun() == 2 })
		})
		if n := locktest.Scan[int](t, pgtest.PoolOn(t, url), "SELECT count(*) FROM journal"); n != 2 {
			t.Errorf("without a lock the migration was applied %d times", n)
		}
	})
}

// TestUnlockReportsALostLock: golang-migrate returns the error from the run, which was not stopped.
func TestUnlockReportsALostLock(t *testing.T) {
	t.Parallel()
	eachLock(t, func(t *testing.T, kind lockKind) {
		t.Helper()
		url, pool, note, g := newDatabase(t)
		d := wrapped(t, url, lockOptions(t, kind, url)...)
		end := make(chan error, 1)
		m := migrator(t, d, g.SQL()+note(1))
		go func() { end <- m.Up() }()
		g.Reached()
		endLock(t, pool, kind, g)
		<-runner.Lost(d)
		g.Open()
		if err := <-end; !errors.Is(err, runner.ErrLost) {
			t.Errorf("the run ended with %v", err)
		}
		wantVersion(t, pool, 1, false)
		if err := d.Unlock(); !errors.Is(err, database.ErrNotLocked) {
			t.Errorf("Unlock again: %v", err)
		}
	})
}

// TestWrapLocksItsVersionTable: drivers of other version tables don't wait, and Run on the same table
// does.
func TestWrapLocksItsVersionTable(t *testing.T) {
	t.Parallel()
	eachLock(t, func(t *testing.T, kind lockKind) {
		t.Helper()
		url := pgtest.Database(t)
		lock := func(opts ...runner.LockOption) error {
			t.Helper()
			return wrapped(t, url, append(lockOptions(t, kind, url), opts...)...).Lock()
		}
		if err := lock(); err != nil {
			t.Fatal(err)
		}
		short := runner.WithTimeout(300 * time.Millisecond)
		for what, c := range map[string]struct {
			err  error
			want error
		}{
			"another table":       {lock(runner.WithVersionTable("", "other")), nil},
			"another schema":      {lock(runner.WithVersionTable(`odd "one`, "schema_migrations")), nil},
			"another name":        {lock(runner.WithName("m")), nil},
			"the same table":      {lock(short), runner.ErrNotAcquired},
			"the table, by name":  {lock(short, runner.WithVersionTable("public", "schema_migrations")), runner.ErrNotAcquired},
			"Run, the same table": {runner.Run(t.Context(), source("SELECT 1"), pgtest.PoolOn(t, url), append(kind.opts(t, url), short)...), runner.ErrNotAcquired},
		} {
			if !errors.Is(c.err, c.want) {
				t.Errorf("%s: %v", what, c.err)
			}
		}
	})
}

// TestP31_WrapWaitsNoLongerThanItsTimeout, which is shorter than golang-migrate's by default, and names
// the holder. Close and the context end a wait too.
func TestP31_WrapWaitsNoLongerThanItsTimeout(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	holder := wrapped(t, url, runner.WithHolder("replica x"))
	if err := holder.Lock(); err != nil {
		t.Fatal(err)
	}
	var held *runner.WaitError
	err := migrator(t, wrapped(t, url, runner.WithTimeout(100*time.Millisecond)), "SELECT 1").Up()
	if !errors.As(err, &held) || !errors.Is(err, runner.ErrTimeout) || held.Holder == "" || held.Lock != `migrations of "public"."schema_migrations"` {
		t.Errorf("timed out: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancelled, err := runner.Wrap(ctx, stock(t, url), pgtest.PoolOn(t, url))
	if err != nil {
		t.Fatal(err)
	}
	closed, err := runner.Wrap(t.Context(), stock(t, url), pgtest.PoolOn(t, url))
	if err != nil {
		t.Fatal(err)
	}
	ends := make(chan error, 2)
	for _, d := range []*runner.Driver{cancelled, closed} {
		go func() { ends <- d.Lock() }()
	}
	cancel()
	if err := closed.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	for range 2 {
		if err := <-ends; !errors.Is(err, context.Canceled) {
			t.Errorf("the wait ended: %v", err)
		}
	}
	if err := cancelled.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
}

// TestLockCallsThePoolsHooks: the lock has connections of its own, which the caller's hooks prepare.
func TestLockCallsThePoolsHooks(t *testing.T) {
	t.Parallel()
	for name, set := range map[string]func(c *pgxpool.Config, called func()){
		"PrepareConn": func(c *pgxpool.Config, called func()) {
			c.PrepareConn = func(context.Context, *pgx.Conn) (bool, error) { called(); return true, nil }
		},
		"BeforeAcquire": func(c *pgxpool.Config, called func()) {
			c.BeforeAcquire = func(context.Context, *pgx.Conn) bool { called(); return true } //nolint:staticcheck // callers may still set it
		},
	} {
		url := pgtest.Database(t)
		var calls atomic.Int64
		pool := pgtest.PoolOn(t, url, func(c *pgxpool.Config) { set(c, func() { calls.Add(1) }) })
		d, err := runner.Wrap(t.Context(), stock(t, url), pool)
		if err != nil {
			t.Fatal(err)
		}
		before := calls.Load()
		if err := d.Lock(); err != nil {
			t.Fatal(err)
		}
		if calls.Load() == before {
			t.Errorf("%s is not called for the lock's connection", name)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
}
