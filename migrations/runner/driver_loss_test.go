package runner_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/golang-migrate/migrate/v4/database"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/migrations/runner"
)

// TestADriverWithoutItsLockWritesNothing by any of its methods.
func TestADriverWithoutItsLockWritesNothing(t *testing.T) {
	t.Parallel()
	url, pool, note, g := newDatabase(t)
	lost := func() *runner.Driver {
		t.Helper()
		d := wrapped(t, url)
		if err := d.Lock(); err != nil {
			t.Fatal(err)
		}
		if _, _, err := d.Version(); err != nil {
			t.Fatal(err)
		}
		if err := d.SetVersion(7, false); err != nil {
			t.Fatal(err)
		}
		if err := d.SetVersion(8, true); err != nil {
			t.Fatal(err)
		}
		endLock(t, pool, lockKinds[0], g)
		pgtest.Eventually(t, locktest.Patience, "the driver has lost its lock", func() bool { return runner.Lost(d) })
		return d
	}
	var stopped *runner.StoppedError

	d := lost()
	if err := d.Run(strings.NewReader(note(8))); !errors.As(err, &stopped) || !errors.Is(err, runner.ErrLost) || stopped.Version != 7 || stopped.Dirty {
		t.Errorf("Run: %v", err)
	}
	wantVersion(t, pool, 7, false) // the mark is cleared
	wantJournal(t, pool, 0)
	if err := d.SetVersion(9, true); !errors.As(err, &stopped) || stopped.Version != 7 || stopped.Dirty {
		t.Errorf("the next migration: %v", err)
	}
	if err := d.Drop(); !errors.As(err, &stopped) {
		t.Errorf("Drop: %v", err)
	}
	wantVersion(t, pool, 7, false)
	if err := d.Unlock(); err != nil {
		t.Errorf("Unlock: %v", err)
	}
	if err := d.Unlock(); !errors.Is(err, database.ErrNotLocked) {
		t.Errorf("Unlock again: %v", err)
	}

	d = lost()
	if err := d.SetVersion(8, false); !errors.As(err, &stopped) || stopped.Version != 8 || stopped.Dirty {
		t.Errorf("the end of a migration: %v", err)
	}
	wantVersion(t, pool, 8, false)
	if err := d.Unlock(); err != nil {
		t.Errorf("Unlock: %v", err)
	}

	// The driver does not change a row that is not its own mark: a person has dealt with it.
	for what, c := range map[string]struct {
		version int
		dirty   bool
		call    func(d *runner.Driver) error
	}{
		"another version":        {6, false, func(d *runner.Driver) error { return d.SetVersion(8, false) }},
		"another mark":           {6, true, func(d *runner.Driver) error { return d.SetVersion(8, false) }},
		"the version, done":      {8, false, func(d *runner.Driver) error { return d.Run(strings.NewReader(note(8))) }},
		"another mark, no start": {6, true, func(d *runner.Driver) error { return d.Run(strings.NewReader(note(8))) }},
	} {
		d = lost()
		locktest.Exec(t, pool, "UPDATE schema_migrations SET version = $1, dirty = $2", c.version, c.dirty)
		if err := c.call(d); !errors.As(err, &stopped) || !errors.Is(err, runner.ErrDirty) || stopped.Version != 8 {
			t.Errorf("%s: %v", what, err)
		}
		wantVersion(t, pool, c.version, c.dirty)
		if err := d.Unlock(); err != nil {
			t.Errorf("Unlock: %v", err)
		}
	}
	g.Open()
	locktest.NoLockLeft(t, pool)
}

// TestWrapStopsWithItsContext between two migrations.
func TestWrapStopsWithItsContext(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	d, err := runner.Wrap(ctx, stock(t, url), pgtest.PoolOn(t, url))
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	why := errors.New("the service is stopped")
	if err := d.Lock(); err != nil {
		t.Fatal(err)
	}
	if err := d.SetVersion(1, true); err != nil {
		t.Fatal(err)
	}
	cancel(why)
	if err := d.Run(strings.NewReader("SELECT 1")); err != nil {
		t.Errorf("the current migration: %v", err)
	}
	if err := d.SetVersion(1, false); err != nil {
		t.Errorf("its end: %v", err)
	}
	if err := d.SetVersion(2, true); !errors.Is(err, why) {
		t.Errorf("the next one: %v", err)
	}
	if err := d.Unlock(); err != nil {
		t.Errorf("Unlock: %v", err)
	}
	pool := pgtest.PoolOn(t, url)
	wantVersion(t, pool, 1, false)
	locktest.NoLockLeft(t, pool)
}
