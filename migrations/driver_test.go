package migrations_test

import (
	"context"
	"database/sql"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/golang-migrate/migrate/v4"
	"github.com/golang-migrate/migrate/v4/database"
	migratepgx "github.com/golang-migrate/migrate/v4/database/pgx/v5"
	dt "github.com/golang-migrate/migrate/v4/database/testing"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver that golang-migrate's uses

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/migrations"
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

func wrapped(t *testing.T, url string, opts ...migrations.LockOption) *migrations.Driver {
	t.Helper()
	d, err := migrations.Wrap(t.Context(), stock(t, url), pgtest.PoolOn(t, url), opts...)
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

// migrator puts golang-migrate on a driver.
func migrator(t *testing.T, d database.Driver, texts ...string) *migrate.Migrate {
	t.Helper()
	return migratorOf(t, d, source(texts...))
}

func migratorOf(t *testing.T, d database.Driver, source migrations.Source) *migrate.Migrate {
	t.Helper()
	src, err := source()
	if err != nil {
		t.Fatal(err)
	}
	m, err := migrate.NewWithInstance("test", src, "pgx5", d)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// lockOptions are those of a form that Wrap takes.
func lockOptions(t *testing.T, form lockForm, url string) (opts []migrations.LockOption) {
	t.Helper()
	for _, o := range form.opts(t, url) {
		opts = append(opts, o.(migrations.LockOption))
	}
	return opts
}

// TestWrapPassesGolangMigratesOwnSuite of what a driver must do.
func TestWrapPassesGolangMigratesOwnSuite(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, form lockForm) {
		t.Helper()
		url := pgtest.Database(t)
		dt.Test(t, wrapped(t, url, lockOptions(t, form, url)...), []byte("SELECT 1"))
		other := pgtest.Database(t)
		dt.TestMigrate(t, migrator(t, wrapped(t, other, lockOptions(t, form, other)...), "CREATE TABLE a ()"))
	})
}

// unlocked is golang-migrate's driver without its lock. Each of those that read the version goes
// on when all have.
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

// TestWrapExcludes: of two runs with golang-migrate one applies the migration. The control
// without a lock applies it twice.
func TestI1_P42_WrapExcludes(t *testing.T) {
	t.Parallel()
	twice := func(t *testing.T, url string, open func() database.Driver, meet func(g *gate, begun func() int)) {
		t.Helper()
		pool := pgtest.PoolOn(t, url)
		note := journal(t, pool)
		g := newGate(t, pool)
		var all sync.WaitGroup
		for range 2 {
			m := migrator(t, open(), g.sql()+note(1))
			all.Go(func() {
				if err := m.Up(); err != nil && !errors.Is(err, migrate.ErrNoChange) {
					t.Error(err)
				}
			})
		}
		meet(g, func() int {
			return scan[int](t, pool, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND objid = $1", g.key)
		})
		g.open()
		all.Wait()
	}
	each(t, func(t *testing.T, form lockForm) {
		t.Helper()
		url := pgtest.Database(t)
		var told listener
		n := 0
		twice(t, url, func() database.Driver {
			n++
			return wrapped(t, url, append(lockOptions(t, form, url), told.option(n))...)
		}, func(g *gate, begun func() int) {
			g.reached()
			pgtest.Eventually(t, patience, "the other one waits", func() bool { return told.waiting() == 1 })
			if n := begun(); n != 1 {
				t.Errorf("%d runs have begun the migration", n)
			}
		})
		pool := pgtest.PoolOn(t, url)
		wantJournal(t, pool, 1)
		wantNoLock(t, pool)
	})
	t.Run("control", func(t *testing.T) {
		t.Parallel()
		url := pgtest.Database(t)
		var both sync.WaitGroup
		both.Add(2)
		twice(t, url, func() database.Driver { return unlocked{stock(t, url), &both} }, func(_ *gate, begun func() int) {
			pgtest.Eventually(t, patience, "both are at it", func() bool { return begun() == 2 })
		})
		if n := scan[int](t, pgtest.PoolOn(t, url), "SELECT count(*) FROM journal"); n != 2 {
			t.Errorf("without a lock the migration was applied %d times", n)
		}
	})
}

// TestP31_ALockThatComesTooLateIsGivenBack: golang-migrate's time-out returns and leaves a
// goroutine that waits for the lock. The control with the driver's own lock gets it later, and
// nobody unlocks it.
func TestP31_ALockThatComesTooLateIsGivenBack(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, form lockForm) {
		t.Helper()
		url := pgtest.Database(t)
		holder, late := wrapped(t, url, lockOptions(t, form, url)...), wrapped(t, url, append(lockOptions(t, form, url), migrations.WithTimeout(patience))...)
		migrations.SetPatience(late, 50*time.Millisecond)
		if err := holder.Lock(); err != nil {
			t.Fatal(err)
		}
		m := migrator(t, late, "SELECT 1")
		m.LockTimeout = 50 * time.Millisecond
		if err := m.Up(); !errors.Is(err, migrate.ErrLockTimeout) {
			t.Fatalf("while it is held: %v", err)
		}
		if err := holder.Unlock(); err != nil {
			t.Fatal(err)
		}
		pgtest.Eventually(t, patience, "it is granted late", func() bool { return migrations.Granted(late) })
		if _, _, err := m.Version(); !errors.Is(err, migrate.ErrNilVersion) { // that is no use of the lock
			t.Fatal(err)
		}
		pgtest.Eventually(t, patience, "the late lock is given back", func() bool { return migrations.GivenBack(late) })
		wantNoLock(t, pgtest.PoolOn(t, url))
		m.LockTimeout = patience
		if err := m.Up(); err != nil {
			t.Errorf("the next try: %v", err)
		}
	})
	t.Run("control", func(t *testing.T) {
		t.Parallel()
		url := pgtest.Database(t)
		pool := pgtest.PoolOn(t, url)
		holder, late := stock(t, url), stock(t, url)
		if err := holder.Lock(); err != nil {
			t.Fatal(err)
		}
		m := migrator(t, late, "SELECT 1")
		m.LockTimeout = 50 * time.Millisecond
		if err := m.Up(); !errors.Is(err, migrate.ErrLockTimeout) {
			t.Fatalf("while it is held: %v", err)
		}
		if err := holder.Unlock(); err != nil {
			t.Fatal(err)
		}
		// holder's session has none any more: it is the late one's.
		pgtest.Eventually(t, patience, "the late one has it", func() bool {
			return scan[int](t, pool, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())") == 1
		})
		pgtest.Eventually(t, patience, "and nobody else gets it", func() bool { return errors.Is(m.Up(), database.ErrLocked) })
	})
}

// TestWrapWaitsNoLongerThanItsTimeout and tells who holds the lock; Close and the context end a wait.
func TestWrapWaitsNoLongerThanItsTimeout(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	holder := wrapped(t, url, migrations.WithHolder("replica x"))
	if err := holder.Lock(); err != nil {
		t.Fatal(err)
	}
	var held *migrations.WaitError
	err := migrator(t, wrapped(t, url, migrations.WithTimeout(100*time.Millisecond)), "SELECT 1").Up()
	if !errors.As(err, &held) || !errors.Is(err, migrations.ErrTimeout) || held.Holder == "" || held.Lock != "golang-migrate" {
		t.Errorf("timed out: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancelled, err := migrations.Wrap(ctx, stock(t, url), pgtest.PoolOn(t, url))
	if err != nil {
		t.Fatal(err)
	}
	closed, err := migrations.Wrap(t.Context(), stock(t, url), pgtest.PoolOn(t, url))
	if err != nil {
		t.Fatal(err)
	}
	ends := make(chan error, 2)
	for _, d := range []*migrations.Driver{cancelled, closed} {
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
