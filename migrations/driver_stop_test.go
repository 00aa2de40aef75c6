package migrations_test

import (
	"errors"
	"testing"
	"testing/fstest"

	"github.com/golang-migrate/migrate/v4"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/migrations"
)

// endLock ends the lock of the only holder: its session is terminated, or its lease taken away.
func endLock(t *testing.T, pool *pgxpool.Pool, form lockForm, g *gate) {
	t.Helper()
	if form.name == "lease" {
		mustExec(t, pool, "UPDATE pglock.distributed_locks SET token = pglock.next_fencing_token(), version = version + 1, expires_at = clock_timestamp() WHERE holder IS NOT NULL")
		return
	}
	if n := scan[int](t, pool, "SELECT count(pg_terminate_backend(pid)) FROM pg_locks WHERE locktype = 'advisory' AND granted AND mode = 'ExclusiveLock' AND objid <> $1 AND database = (SELECT oid FROM pg_database WHERE datname = current_database())", g.key); n != 1 {
		t.Fatalf("%d sessions hold the lock", n)
	}
}

// TestWrapStopsWhenItsLockIsLost: the migration under way is finished and recorded, and no
// other begun.
func TestWrapStopsWhenItsLockIsLost(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, form lockForm) {
		t.Helper()
		url := pgtest.Database(t)
		pool := pgtest.PoolOn(t, url)
		note := journal(t, pool)
		g := newGate(t, pool)
		d := wrapped(t, url, lockOptions(t, form, url)...)
		// The third has no file that leads up: golang-migrate leaves a goroutine behind for one
		// that it has read and not carried out.
		files := fstest.MapFS{"1_m.up.sql": {Data: []byte(note(1))}, "2_m.up.sql": {Data: []byte(g.sql() + note(2))}, "3_m.down.sql": {}}
		m := migratorOf(t, d, migrations.Files(files, "."))
		end := make(chan error, 1)
		go func() { end <- m.Up() }()
		g.reached()
		endLock(t, pool, form, g)
		pgtest.Eventually(t, patience, "the driver learns of it", func() bool { return migrations.Lost(d) })
		g.open()
		var stopped *migrations.StoppedError
		if err := <-end; !errors.As(err, &stopped) || !errors.Is(err, migrations.ErrLost) || stopped.Version != 2 || stopped.Dirty {
			t.Errorf("the run ended with %v", err)
		}
		wantJournal(t, pool, 2)
		wantVersion(t, pool, 2, false)
		if err := m.Up(); err != nil {
			t.Errorf("the next run: %v", err)
		}
		wantVersion(t, pool, 3, false)
		wantNoLock(t, pool)
	})
}

// TestALostLockThatSomebodyElseHasLeavesTheMark: nobody writes the version but the holder.
func TestALostLockThatSomebodyElseHasLeavesTheMark(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	pool := pgtest.PoolOn(t, url)
	note := journal(t, pool)
	g := newGate(t, pool)
	d := wrapped(t, url)
	end := make(chan error, 1)
	go func() { end <- migrator(t, d, g.sql()+note(1)).Up() }()
	g.reached()
	endLock(t, pool, forms[0], g)
	pgtest.Eventually(t, patience, "the driver learns of it", func() bool { return migrations.Lost(d) })
	other := wrapped(t, url, migrations.WithTimeout(patience))
	m := migrator(t, other, g.sql()+note(1))
	var dirty migrate.ErrDirty
	if err := m.Up(); !errors.As(err, &dirty) || dirty.Version != 1 {
		t.Errorf("another run meets the mark: %v", err)
	}
	if err := m.Force(0); err != nil { // as a person may
		t.Fatal(err)
	}
	g.open()
	var stopped *migrations.StoppedError
	if err := <-end; !errors.As(err, &stopped) || !errors.Is(err, migrations.ErrDirty) || stopped.Version != 1 {
		t.Errorf("the run ended with %v", err)
	}
	wantVersion(t, pool, 0, false) // what the person has recorded
}
