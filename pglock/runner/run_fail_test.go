package runner_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/fstest"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/pgtx"
	"github.com/pglock/pglock-go/pglock/runner"
)

// TestKilledMigrationIsRolledBack, and the next run applies it.
func TestKilledMigrationIsRolledBack(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	src := source(note(1), note(2)+f.gate.SQL(), note(3))
	end := f.start(src)
	f.exec("SELECT pg_terminate_backend($1)", f.gate.Reached())
	var failed *runner.MigrationError
	if err := <-end; !errors.As(err, &failed) || failed.Version != 2 || failed.Dirty || failed.Unknown || errors.Is(err, runner.ErrDirty) {
		t.Errorf("killed: %v", err)
	}
	f.want(1, false, 1)
	f.gate.Open()
	f.wantNil(f.start(src))
	f.want(3, false, 3)
	f.noLockLeft()
}

// TestMigrationKilledOutsideATransactionStaysDirty: no run continues before a person has checked.
func TestMigrationKilledOutsideATransactionStaysDirty(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	reader, err := f.pool.Begin(t.Context()) // whose end the index waits for
	ok(t, err)
	defer func() { _ = reader.Rollback(context.Background()) }()
	if _, err := reader.Exec(t.Context(), "INSERT INTO journal VALUES (0)"); err != nil {
		t.Fatal(err)
	}
	src := source("CREATE INDEX CONCURRENTLY late ON journal (version)", note(2))
	end := f.start(src)
	pgtest.Eventually(t, "the index waits, and is killed", func() bool {
		return locktest.Scan[int](t, f.pool, "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE query LIKE 'CREATE INDEX%' AND wait_event_type = 'Lock' AND datname = current_database()") == 1
	})
	var failed *runner.MigrationError
	if err := <-end; !errors.As(err, &failed) || !failed.Dirty || failed.Version != 1 || failed.Before != -1 {
		t.Errorf("killed: %v", err)
	}
	if err := f.run(src); !errors.Is(err, runner.ErrDirty) || !strings.Contains(err.Error(), "migration 1") || !strings.Contains(err.Error(), "DELETE FROM") {
		t.Errorf("the next one: %v", err)
	}
	f.want(1, true, 0)
	f.noLockLeft()
}

// TestFailedMigration leaves nothing, or its error says that it may have.
func TestFailedMigration(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		sql     string
		dirty   bool
		left    int // in the journal
		contain string
	}{
		"half-way":                {"INSERT INTO journal VALUES (1); SELECT 1/0;", false, 0, "division by zero"},
		"in its last statement":   {"INSERT INTO journal VALUES (1); COMMIT; SELECT 1/0;", true, 1, "UPDATE"},
		"which needs its own":     {"INSERT INTO journal VALUES (1); CREATE INDEX CONCURRENTLY ON journal (version);", false, 0, "a separate file"},
		"after a part of it":      {"INSERT INTO journal VALUES (1); COMMIT; BEGIN; VACUUM journal;", true, 1, "UPDATE"},
		"alone":                   {"CREATE UNIQUE INDEX CONCURRENTLY ON missing (version)", true, 0, "UPDATE"},
		"at the commit":           {"INSERT INTO journal VALUES (1); CREATE TABLE child (id int UNIQUE REFERENCES child DEFERRABLE INITIALLY DEFERRED); INSERT INTO child VALUES (1); ALTER TABLE journal ADD parent int REFERENCES child (id) DEFERRABLE INITIALLY DEFERRED; UPDATE journal SET parent = 9;", false, 0, ""},
		"with the wrong language": {"CREATE TABLE `a`;", false, 0, "syntax error"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			src := source("SELECT 1", c.sql, note(3))
			for try := range 2 {
				err := f.run(src)
				var failed *runner.MigrationError
				switch {
				case c.dirty && try == 1:
					if !errors.Is(err, runner.ErrDirty) || !strings.Contains(err.Error(), "SET version = 1, dirty = false") {
						t.Errorf("the next run: %v", err)
					}
				case !errors.As(err, &failed) || failed.Version != 2 || failed.Name != "m" ||
					failed.Dirty != c.dirty || errors.Is(err, runner.ErrDirty) != c.dirty || !strings.Contains(err.Error(), c.contain):
					t.Errorf("the error is %v", err)
				}
			}
			version := 1
			if c.dirty {
				version = 2
			}
			f.want(version, c.dirty, c.left)
			f.noLockLeft()
		})
	}
}

// TestDirtyRemedyWorks: both statements of the error's text.
func TestDirtyRemedyWorks(t *testing.T) {
	t.Parallel()
	for _, done := range []bool{true, false} {
		f := newFixture(t)
		fails := "CREATE UNIQUE INDEX CONCURRENTLY twice ON journal ((version * 0))"
		err := f.run(source(note(1)+note(1), fails))
		remedy := strings.Split(err.Error(), "`") // the statements are the second and the fourth
		if len(remedy) != 5 {
			t.Fatalf("the error is %v", err)
		}
		f.exec("DROP INDEX twice; DELETE FROM journal; INSERT INTO journal VALUES (1)")
		statement := remedy[3]
		if done {
			statement = remedy[1]
		}
		f.exec(statement)
		f.wantNil(f.start(source(note(1), fails, "SELECT 1"), runner.AllowChanged(1)))
		if made := locktest.Scan[bool](t, f.pool, "SELECT to_regclass('twice') IS NOT NULL"); made == done {
			t.Errorf("taken for done: %v, applied: %v", done, made)
		}
	}
}

// TestOtherSourcesAreRefused: a later release has migrated the database, or another program.
func TestOtherSourcesAreRefused(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.wantNil(f.start(source(note(1), note(2))))
	err := f.run(source(note(1)))
	if !errors.Is(err, runner.ErrUnknownVersion) || !strings.Contains(err.Error(), `is at version 2 by "m", and the source's last version is 1: `) || !strings.Contains(err.Error(), "AllowNewer") {
		t.Errorf("an earlier release: %v", err)
	}
	other := fstest.MapFS{"1_x.up.sql": {Data: []byte("SELECT 1/0")}, "2_y's \\'.up.sql": {Data: []byte("SELECT 1/0")}, "3_z.up.sql": {Data: []byte("SELECT 1/0")}}
	err = f.run(runner.Files(other, "."))
	if !errors.Is(err, runner.ErrOtherSource) || !strings.Contains(err.Error(), `by "m", which is "y's \\'" in this source`) || !strings.Contains(err.Error(), "WithVersionTable") {
		t.Errorf("another program: %v", err)
	}
	f.want(2, false, 2)
	// The remedy works, also with the same lock, and in a schema with an odd name.
	f.exec(`CREATE SCHEMA "odd ""one"`)
	for n := range other {
		other[n].Data = []byte("SELECT 1")
	}
	for range 2 {
		if err := f.run(runner.Files(other, "."), runner.WithVersionTable(`odd "one`, `its "versions`), runner.WithName("same")); err != nil {
			t.Errorf("in a table of its own: %v", err)
		}
	}
	f.wantNil(f.start(source(note(1), note(2), note(3)), runner.WithName("same")))
	f.want(3, false, 3)
	f.exec("ALTER TABLE schema_migrations DROP CONSTRAINT schema_migrations_pkey; INSERT INTO schema_migrations VALUES (1, false)")
	if err := f.run(source(note(1))); !errors.Is(err, runner.ErrOtherSource) {
		t.Errorf("a table with two rows: %v", err)
	}
}

// TestVersionTableCreatedAtOnce: as a process that was killed and the next one may do, sessions
// create the table at the same time, and each of them finds it. Creating it where a type has its
// name fails.
func TestVersionTableCreatedAtOnce(t *testing.T) {
	t.Parallel()
	const sessions, tables = 8, 60
	pool := pgtest.PoolOn(t, pgtest.Database(t))
	for i := range tables {
		var all sync.WaitGroup
		begin := make(chan struct{})
		for range sessions {
			all.Go(func() {
				<-begin
				if err := runner.CreateVersionTable(t.Context(), pool, fmt.Sprint("t", i)); err != nil {
					t.Errorf("table %d: %v", i, err)
				}
			})
		}
		close(begin)
		all.Wait()
	}
	locktest.Exec(t, pool, "CREATE TYPE taken AS ENUM ()")
	if err := runner.CreateVersionTable(t.Context(), pool, "taken"); pgtx.SQLState(err) != pgtx.DuplicateObject {
		t.Errorf("a type has the table's name: %v", err)
	}
}
