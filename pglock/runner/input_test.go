package runner_test

import (
	"errors"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/golang-migrate/migrate/v4/database"
	"github.com/golang-migrate/migrate/v4/database/stub"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/runner"
)

// TestRunAndGolangMigrateShareTheVersionTable in both directions.
func TestRunAndGolangMigrateShareTheVersionTable(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	run := func(texts ...string) { t.Helper(); f.wantNil(f.start(source(texts...))) }
	up := func(texts ...string) { t.Helper(); f.wantNil(f.startUp(stock(t, f.url), texts...)) }
	run(note(1))
	up(note(1), note(2))
	run(note(1), note(2), note(3))
	up(note(1), note(2), note(3), note(4))
	f.want(4, false, 4)
	f.gate.Open()
	ok(t, migrator(t, stock(t, f.url), note(1)).Drop())
	f.exec("CREATE TABLE journal (version int)")
	up(note(1))
	run(note(1), note(2))
	f.want(2, false, 2)
}

// TestInvalidArgumentsAreRefused: sources, pools, drivers and options.
func TestInvalidArgumentsAreRefused(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	pool := pgtest.PoolOn(t, url)
	run := func(src runner.Source, opts ...runner.Option) error {
		return runner.Run(t.Context(), src, pool, opts...)
	}
	wrap := func(driver database.Driver, pool *pgxpool.Pool, opts ...runner.Option) error {
		_, err := runner.Wrap(t.Context(), driver, pool, opts...)
		return err
	}
	one := source("SELECT 1")
	for name, err := range map[string]error{
		"no source":       run(nil),
		"no pool":         runner.Run(t.Context(), one, nil),
		"timeout":         run(one, runner.WithTimeout(0)),
		"holder":          run(one, runner.WithHolder("")),
		"holder with NUL": run(one, runner.WithHolder("a\x00")),
		"name":            run(one, runner.WithName("")),
		"lease":           run(one, runner.WithLease(nil)),
		"table":           run(one, runner.WithVersionTable("a", "")),
		"long table":      run(one, runner.WithVersionTable("", strings.Repeat("t", 58))),
		"Wrap, no driver": wrap(nil, pool),
		"Wrap, no pool":   wrap(&stub.Stub{}, nil, runner.WithLease(locktest.Client(t, url))),
		"Wrap, newer":     wrap(&stub.Stub{}, pool, runner.AllowNewer()),
		"Wrap, order":     wrap(&stub.Stub{}, pool, runner.AllowOutOfOrder()),
		"Wrap, changed":   wrap(&stub.Stub{}, pool, runner.AllowChanged(1)),
	} {
		if !errors.Is(err, pglock.ErrInvalidOption) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := run(source()); !errors.Is(err, runner.ErrNoMigrations) {
		t.Errorf("no files: %v", err)
	}
	if err := run(runner.Files(fstest.MapFS{}, "missing")); err == nil {
		t.Error("no directory: no error")
	}
	if err := run(runner.Files(fstest.MapFS{"1_a.up.sql": &fstest.MapFile{}, "1_b.up.sql": &fstest.MapFile{}}, ".")); err == nil {
		t.Error("a version twice: no error")
	}
	if err := run(one, runner.WithVersionTable("", strings.Repeat("t", 57))); err != nil {
		t.Errorf("control: the longest table: %v", err)
	}
	if err := run(one, runner.WithLogger(nil)); err != nil {
		t.Errorf("no logger: %v", err)
	}
}
