package migrations_test

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"testing/fstest"

	"github.com/golang-migrate/migrate/v4/database"
	"github.com/golang-migrate/migrate/v4/source/iofs"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/migrations"
)

// sqlite answers as a driver for another database does.
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
	d, err := migrations.Wrap(t.Context(), sqlite{stock(t, url)}, pgtest.PoolOn(t, url))
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if err := migrator(t, d, "SELECT 1").Up(); !errors.Is(err, migrations.ErrNotPostgres) {
		t.Errorf("another database: %v", err)
	}
	wantNoLock(t, pgtest.PoolOn(t, url))
}

// TestRunAndGolangMigrateKnowEachOthersTable, in both directions.
func TestRunAndGolangMigrateKnowEachOthersTable(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	pool := pgtest.PoolOn(t, url)
	note := journal(t, pool)
	run := func(texts ...string) {
		t.Helper()
		if err := migrations.Run(t.Context(), source(texts...), pool); err != nil {
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
	mustExec(t, pool, "CREATE TABLE journal (version int)")
	up(note(1))
	run(note(1), note(2))
	wantJournal(t, pool, 2)
}

// TestNoSourceNoGaps: what a source can't be.
func TestSourcesThatCannotBe(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	pool := pgtest.PoolOn(t, url)
	if err := migrations.Run(t.Context(), nil, pool); !errors.Is(err, migrations.ErrInvalidOption) {
		t.Errorf("no source: %v", err)
	}
	if err := migrations.Run(t.Context(), source(), pool); !errors.Is(err, migrations.ErrNoMigrations) {
		t.Errorf("no files: %v", err)
	}
	if err := migrations.Run(t.Context(), migrations.Files(fstest.MapFS{}, "missing"), pool); err == nil {
		t.Error("no directory: no error")
	}
	if err := migrations.Run(t.Context(), source("SELECT 1"), nil); !errors.Is(err, migrations.ErrInvalidOption) {
		t.Errorf("no pool: %v", err)
	}
	twice := fstest.MapFS{"1_a.up.sql": &fstest.MapFile{}, "1_b.up.sql": &fstest.MapFile{}}
	if _, err := iofs.New(twice, "."); err == nil {
		t.Fatal("golang-migrate takes a version twice")
	} else if err := migrations.Run(t.Context(), migrations.Files(twice, "."), pool); err == nil {
		t.Error("a version twice: no error")
	}
	for name, o := range map[string]migrations.RunOption{
		"time-out": migrations.WithTimeout(0), "progress": migrations.WithProgress(0, func(migrations.Progress) {}), "no progress": migrations.WithProgress(1, nil),
		"logger": migrations.WithLogger(nil), "holder": migrations.WithHolder(""), "name": migrations.WithName(""), "lease": migrations.WithLease(nil),
		"table": migrations.WithVersionTable("a", ""),
	} {
		if err := migrations.Run(t.Context(), source("SELECT 1"), pool, o); !errors.Is(err, migrations.ErrInvalidOption) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := migrations.Wrap(t.Context(), nil, pool); !errors.Is(err, migrations.ErrInvalidOption) {
		t.Errorf("no driver: %v", err)
	}
	if _, err := migrations.Wrap(t.Context(), stock(t, url), nil); !errors.Is(err, migrations.ErrInvalidOption) {
		t.Errorf("no pool, no lease: %v", err)
	}
}
