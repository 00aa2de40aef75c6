package runner_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golang-migrate/migrate/v4"
	"github.com/golang-migrate/migrate/v4/database"
	migratepgx "github.com/golang-migrate/migrate/v4/database/pgx/v5"
	dt "github.com/golang-migrate/migrate/v4/database/testing"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver that golang-migrate's uses

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/runner"
)

// stock opens golang-migrate's own driver.
func stock(t *testing.T, url string) database.Driver {
	t.Helper()
	db, err := sql.Open("pgx", url)
	ok(t, err)
	d, err := migratepgx.WithInstance(db, &migratepgx.Config{})
	ok(t, err)
	t.Cleanup(func() { _ = d.Close() }) // a second time for those that the test closes
	return d
}

// wrapped returns a wrapped driver with the kind of lock of the fixture.
func (f *fixture) wrapped(opts ...runner.Option) *runner.Driver {
	f.Helper()
	d, err := runner.Wrap(f.Context(), stock(f.T, f.url), pgtest.PoolOn(f.T, f.url), f.opts(opts...)...)
	ok(f, err)
	f.Cleanup(func() { _ = d.Close() }) // a second time for those that the test closes
	return d
}

// migrator returns golang-migrate on a driver.
func migrator(t *testing.T, d database.Driver, texts ...string) *migrate.Migrate {
	t.Helper()
	src, err := source(texts...)()
	ok(t, err)
	m, err := migrate.NewWithInstance("test", src, "pgx5", d)
	ok(t, err)
	return m
}

// TestWrapPassesGolangMigratesOwnSuite: golang-migrate has a suite for drivers.
func TestWrapPassesGolangMigratesOwnSuite(t *testing.T) {
	t.Parallel()
	eachLock(t, func(f *fixture) {
		f.exec("DROP TABLE journal") // the suite needs an empty database
		f.gate.Open()
		dt.Test(f.T, f.wrapped(), []byte("SELECT 1"))
		f.exec("DROP TABLE IF EXISTS schema_migrations")
		dt.TestMigrate(f.T, migrator(f.T, f.wrapped(), "CREATE TABLE a ()"))
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

// startUp begins a run of golang-migrate. The channel receives its error.
func (f *fixture) startUp(d database.Driver, texts ...string) <-chan error {
	f.Helper()
	m, end := migrator(f.T, d, texts...), make(chan error, 1)
	go func() {
		err := m.Up()
		if errors.Is(err, migrate.ErrNoChange) {
			err = nil
		}
		end <- err
	}()
	return end
}

// TestI1_P42_WrapExcludes: of two runs with golang-migrate one applies the migration. In the control,
// without a lock, both do.
func TestI1_P42_WrapExcludes(t *testing.T) {
	t.Parallel()
	eachLock(t, func(f *fixture) {
		var waits waitCounter
		text := f.gate.SQL() + note(1)
		first, second := f.startUp(f.wrapped(waits.option("a")), text), f.startUp(f.wrapped(waits.option("b")), text)
		f.gate.Reached()
		waits.reached(f.T, 1)
		if n := f.gate.Waiting(); n != 1 {
			f.Errorf("%d runs have begun the migration", n)
		}
		f.gate.Open()
		f.wantNil(first, second)
		f.want(1, false, 1)
	})
	t.Run("control", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		var both sync.WaitGroup
		both.Add(2)
		var ends []<-chan error
		for range 2 {
			ends = append(ends, f.startUp(unlocked{stock(t, f.url), &both}, f.gate.SQL()+note(1)))
		}
		pgtest.Eventually(t, "both run the migration", func() bool { return f.gate.Waiting() == 2 })
		f.gate.Open()
		f.wantNil(ends...)
		if n := locktest.Scan[int](t, f.pool, "SELECT count(*) FROM journal"); n != 2 {
			t.Errorf("without a lock the migration was applied %d times", n)
		}
	})
}

// TestUnlockReportsALostLock: golang-migrate returns the error from the run, which was not stopped.
func TestUnlockReportsALostLock(t *testing.T) {
	t.Parallel()
	eachLock(t, func(f *fixture) {
		lost := make(chan struct{})
		d := f.wrapped(runner.WithLost(lost))
		end := f.startUp(d, f.gate.SQL()+note(1))
		f.gate.Reached()
		f.endLock()
		<-lost
		f.gate.Open()
		if err := <-end; !errors.Is(err, pglock.ErrLost) {
			f.Errorf("the run ended with %v", err)
		}
		f.want(1, false, 1)
		if err := d.Unlock(); !errors.Is(err, database.ErrNotLocked) {
			f.Errorf("Unlock again: %v", err)
		}
		f.wantNil(f.start(source("SELECT 1", note(2)))) // takes the lost lease over
	})
}

// TestWrapLocksItsVersionTable: drivers of other version tables don't wait, and Run on the same table
// does. A run with WithKey and one without it exclude each other, so that a later release can drop
// the option. The default timeout is shorter than golang-migrate's.
func TestWrapLocksItsVersionTable(t *testing.T) {
	t.Parallel()
	eachLock(t, func(f *fixture) {
		holder := f.wrapped(runner.WithKey(7), runner.WithHolder("replica x"))
		ok(f, holder.Lock())
		if err := holder.Lock(); !errors.Is(err, database.ErrLocked) {
			f.Errorf("Lock again: %v", err)
		}
		lock := func(opts ...runner.Option) error {
			f.Helper()
			d := f.wrapped(opts...)
			err := d.Lock()
			return errors.Join(err, d.Close())
		}
		short := runner.WithTimeout(300 * time.Millisecond)
		var held *pglock.WaitError
		for what, c := range map[string]struct {
			err  error
			want error
		}{
			"another table":       {lock(runner.WithVersionTable("", "other")), nil},
			"another schema":      {lock(runner.WithVersionTable(`odd "one`, "schema_migrations")), nil},
			"another name":        {lock(runner.WithName("m")), nil},
			"the same table":      {lock(short), pglock.ErrTimeout},
			"the table, by name":  {lock(short, runner.WithVersionTable("public", "schema_migrations")), pglock.ErrTimeout},
			"Run, the same table": {f.run(source("SELECT 1"), short), pglock.ErrTimeout},
		} {
			if !errors.Is(c.err, c.want) {
				f.Errorf("%s: %v", what, c.err)
			}
			if c.want != nil && (!errors.As(c.err, &held) || !strings.Contains(c.err.Error(), ": held by replica x") || held.Name != `migrations of "public"."schema_migrations"`) {
				f.Errorf("%s: the error says %v", what, c.err)
			}
		}
		if err := holder.Close(); err != nil {
			f.Error(err)
		}
	})
}

// TestP31_CloseAndTheContextEndAWait, and the lock is not granted later.
func TestP31_CloseAndTheContextEndAWait(t *testing.T) {
	t.Parallel()
	eachLock(t, func(f *fixture) {
		holder := f.wrapped(runner.WithHolder("replica x"))
		ok(f, holder.Lock())
		ctx, cancel := context.WithCancel(f.Context())
		defer cancel()
		cancelled, err := runner.Wrap(ctx, stock(f.T, f.url), pgtest.PoolOn(f.T, f.url), f.opts()...)
		ok(f, err)
		closed, ends := f.wrapped(), make(chan error, 2)
		for _, d := range []*runner.Driver{cancelled, closed} {
			go func() { ends <- d.Lock() }()
		}
		cancel()
		if err := closed.Close(); err != nil {
			f.Errorf("Close: %v", err)
		}
		for range 2 {
			if err := <-ends; !errors.Is(err, context.Canceled) {
				f.Errorf("the wait ended: %v", err)
			}
		}
		// The error names the holder also if the wait ended before its first attempt.
		if err := cancelled.Lock(); !errors.Is(err, pglock.ErrNotAcquired) || !strings.Contains(err.Error(), ": held by replica x") {
			f.Errorf("Lock after the context's end: %v", err)
		}
		if err := errors.Join(cancelled.Close(), holder.Close()); err != nil {
			f.Errorf("Close: %v", err)
		}
	})
}

// lockers returns the numbers of the advisory locks that sessions hold or, if not granted, wait for.
func (f *fixture) lockers(granted bool) string {
	f.Helper()
	return fmt.Sprint(locktest.Scan[[]string](f.T, f.pool, "SELECT coalesce(array_agg(((classid::bigint << 32) | objid::bigint)::text), '{}') FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 AND granted = $1 AND objid <> $2 AND database = (SELECT oid FROM pg_database WHERE datname = current_database())", granted, f.gate.Key))
}

// TestI1_P42_OldAndNewReplicasExclude: a replica of an earlier release migrates with
// golang-migrate's own lock, one of the new release with Run or Wrap and WithKey. In the control,
// without WithKey, neither waits for the other.
func TestI1_P42_OldAndNewReplicasExclude(t *testing.T) {
	t.Parallel()
	for _, with := range []bool{true, false} {
		t.Run(fmt.Sprintf("key %v", with), func(t *testing.T) {
			t.Parallel()
			eachLock(t, func(f *fixture) {
				key := runner.GolangMigrateKey(f.pool.Config().ConnConfig.Database, "public", "schema_migrations")
				opts := []runner.Option{runner.WithTimeout(pgtest.Patience)}
				if with {
					opts = append(opts, runner.WithKey(key))
				}
				old, renewed := stock(f.T, f.url), f.wrapped(opts...)
				if with {
					opts = append(opts, runner.WithTimeout(3*time.Second))
				}
				hasty := f.wrapped(opts...)
				if err := errors.Join(old.Lock(), old.SetVersion(1, true)); err != nil { // as before a migration
					f.Fatal(err)
				}
				err := hasty.Lock()
				var held *pglock.WaitError
				if with && (!errors.As(err, &held) || !errors.Is(err, pglock.ErrTimeout) || !strings.Contains(err.Error(), ": held by server process ")) || !with && err != nil {
					f.Errorf("Wrap while an old replica migrates: %v", err)
				}
				_ = hasty.Unlock() // of the control
				err = f.run(source("SELECT 1"), opts...)
				if with && !errors.Is(err, pglock.ErrNotAcquired) || !with && !errors.Is(err, runner.ErrDirty) { // it takes the mark of a running migration for that of a dead process
					f.Errorf("Run while an old replica migrates: %v", err)
				}
				if err := errors.Join(old.SetVersion(1, false), old.Unlock(), renewed.Lock()); err != nil {
					f.Fatalf("the new one after the old one: %v", err)
				}
				locked := make(chan error, 1)
				go func() { locked <- old.Lock() }()
				if with {
					pgtest.Eventually(f.T, "the old one waits", func() bool { return f.lockers(false) == fmt.Sprint([]int64{key}) })
				} else if err := <-locked; err != nil {
					f.Errorf("control: the old one waits: %v", err)
				}
				if err := renewed.Unlock(); err != nil {
					f.Error(err)
				}
				if with {
					f.wantNil(locked)
				}
				if err := errors.Join(old.Unlock(), renewed.Close(), hasty.Close()); err != nil {
					f.Error(err)
				}
			})
		})
	}
}

// TestGolangMigrateKeyMatchesTheLibrary: its function, and what its driver locks.
func TestGolangMigrateKeyMatchesTheLibrary(t *testing.T) {
	t.Parallel()
	for _, names := range [][3]string{{"shop", "public", "schema_migrations"}, {"/shop", "public", "schema_migrations"}, {"", "", ""}, {"ü", "odd \"one", "t\x00"}} {
		want, err := database.GenerateAdvisoryLockId(names[0], names[1], names[2])
		ok(t, err)
		if got := runner.GolangMigrateKey(names[0], names[1], names[2]); strconv.FormatInt(got, 10) != want {
			t.Errorf("%q: %d, want %s", names, got, want)
		}
	}
	f := newFixture(t)
	u, err := url.Parse(f.url)
	ok(t, err)
	u.Scheme = "pgx5"
	opened, err := (&migratepgx.Postgres{}).Open(u.String())
	ok(t, err)
	t.Cleanup(func() { _ = opened.Close() }) // the test's end closes the server's side
	name := f.pool.Config().ConnConfig.Database
	for prefix, driver := range map[string]database.Driver{"": stock(t, f.url), "/": opened} { // by instance, by URL
		ok(t, driver.Lock())
		want := fmt.Sprint([]int64{runner.GolangMigrateKey(prefix+name, "public", "schema_migrations")})
		if got := f.lockers(true); got != want {
			t.Errorf("a driver of %q locks %s, not %s", prefix+name, got, want)
		}
		ok(t, driver.Unlock())
	}
}
