package runner_test

import (
	"errors"
	"testing"
	"testing/fstest"

	"github.com/golang-migrate/migrate/v4/database/stub"
	"github.com/golang-migrate/migrate/v4/source/iofs"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock/runner"
)

// TestRunAndGolangMigrateShareTheVersionTable in both directions.
func TestRunAndGolangMigrateShareTheVersionTable(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	pool := pgtest.PoolOn(t, url)
	note := journal(t, pool)
	run := func(texts ...string) {
		t.Helper()
		if err := runner.Run(t.Context(), source(texts...), pool); err != nil {
			t.Fatal(err)
		}
	}
	up := func(texts ...string) {
		t.Helper()
		if err := migrator(t, stock(t, url), texts...).Up(); err != nil {
			t.Fatal(err)
		}
	}
	run(note(1))
	up(note(1), note(2))
	run(note(1), note(2), note(3))
	up(note(1), note(2), note(3), note(4))
	wantJournal(t, pool, 4)
	wantVersion(t, pool, 4, false)
	if err := migrator(t, stock(t, url), note(1)).Drop(); err != nil {
		t.Fatal(err)
	}
	locktest.Exec(t, pool, "CREATE TABLE journal (version int)")
	up(note(1))
	run(note(1), note(2))
	wantJournal(t, pool, 2)
}

// TestInvalidArgumentsAreRefused: sources, pools, drivers and options.
func TestInvalidArgumentsAreRefused(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	pool := pgtest.PoolOn(t, url)
	if err := runner.Run(t.Context(), nil, pool); !errors.Is(err, runner.ErrInvalidOption) {
		t.Errorf("no source: %v", err)
	}
	if err := runner.Run(t.Context(), source(), pool); !errors.Is(err, runner.ErrNoMigrations) {
		t.Errorf("no files: %v", err)
	}
	if err := runner.Run(t.Context(), runner.Files(fstest.MapFS{}, "missing"), pool); err == nil {
		t.Error("no directory: no error")
	}
	if err := runner.Run(t.Context(), source("SELECT 1"), nil); !errors.Is(err, runner.ErrInvalidOption) {
		t.Errorf("no pool: %v", err)
	}
	twice := fstest.MapFS{"1_a.up.sql": &fstest.MapFile{}, "1_b.up.sql": &fstest.MapFile{}}
	if _, err := iofs.New(twice, "."); err == nil {
		t.Fatal("golang-migrate takes a version twice")
	} else if err := runner.Run(t.Context(), runner.Files(twice, "."), pool); err == nil {
		t.Error("a version twice: no error")
	}
	for name, o := range map[string]runner.RunOption{
		"timeout": runner.WithTimeout(0), "holder": runner.WithHolder(""), "name": runner.WithName(""), "lease": runner.WithLease(nil),
		"table": runner.WithVersionTable("a", ""),
	} {
		if err := runner.Run(t.Context(), source("SELECT 1"), pool, o); !errors.Is(err, runner.ErrInvalidOption) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := runner.Wrap(t.Context(), nil, pool); !errors.Is(err, runner.ErrInvalidOption) {
		t.Errorf("no driver: %v", err)
	}
	if _, err := runner.Wrap(t.Context(), &stub.Stub{}, nil, runner.WithLease(locktest.Client(t, url))); !errors.Is(err, runner.ErrInvalidOption) {
		t.Errorf("no pool: %v", err)
	}
	if err := runner.Run(t.Context(), source("SELECT 1"), pool, runner.WithLogger(nil)); err != nil {
		t.Errorf("no logger: %v", err)
	}
}
