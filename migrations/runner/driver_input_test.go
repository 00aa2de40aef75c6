package runner_test

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/golang-migrate/migrate/v4/database"
	"github.com/golang-migrate/migrate/v4/database/stub"
	"github.com/golang-migrate/migrate/v4/source/iofs"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/migrations/runner"
)

// sqlite fails as a driver for another database does.
type sqlite struct{ database.Driver }

func (sqlite) Run(migration io.Reader) error {
	text, err := io.ReadAll(migration)
	if err == nil && bytes.Contains(text, []byte("pg_backend_pid")) {
		err = database.Error{OrigErr: errors.New("no such function: pg_backend_pid"), Query: text}
	}
	return err
}

func TestWrapRefusesWhatIsNotPostgreSQL(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	d, err := runner.Wrap(t.Context(), sqlite{stock(t, url)}, pgtest.PoolOn(t, url))
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if err := migrator(t, d, "SELECT 1").Up(); !errors.Is(err, runner.ErrNotPostgres) {
		t.Errorf("another database: %v", err)
	}
	locktest.NoLockLeft(t, pgtest.PoolOn(t, url))
}

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
		"timeout": runner.WithTimeout(0), "progress": runner.WithProgress(0, func(runner.Progress) {}), "no progress": runner.WithProgress(1, nil),
		"holder": runner.WithHolder(""), "name": runner.WithName(""), "lease": runner.WithLease(nil),
		"table": runner.WithVersionTable("a", ""),
	} {
		if err := runner.Run(t.Context(), source("SELECT 1"), pool, o); !errors.Is(err, runner.ErrInvalidOption) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := runner.Wrap(t.Context(), nil, pool); !errors.Is(err, runner.ErrInvalidOption) {
		t.Errorf("no driver: %v", err)
	}
	if _, err := runner.Wrap(t.Context(), stock(t, url), nil); !errors.Is(err, runner.ErrInvalidOption) {
		t.Errorf("no pool, no lease: %v", err)
	}
	if _, err := runner.Wrap(t.Context(), stock(t, url), nil, runner.WithLease(locktest.Client(t, url)), runner.WithKey(1)); !errors.Is(err, runner.ErrInvalidOption) {
		t.Errorf("no pool, a lease and a key: %v", err)
	}
	if _, err := runner.Wrap(t.Context(), &stub.Stub{}, pool); !errors.Is(err, runner.ErrInvalidOption) || !strings.Contains(err.Error(), "WithName") {
		t.Errorf("a driver with an unknown version table: %v", err)
	}
	d, err := runner.Wrap(t.Context(), &stub.Stub{}, pool, runner.WithName("m"))
	if err != nil {
		t.Fatalf("a driver with an unknown version table, and WithName: %v", err)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	if err := runner.Run(t.Context(), source("SELECT 1"), pool, runner.WithLogger(nil)); err != nil {
		t.Errorf("no logger: %v", err)
	}
}
