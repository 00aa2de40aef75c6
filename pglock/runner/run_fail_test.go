package runner_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/fstest"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/pgtx"
	"github.com/pglock/pglock-go/pglock/runner"
)

// TestKilledMigrationIsRolledBack, and the next run applies it.
func TestKilledMigrationIsRolledBack(t *testing.T) {
	t.Parallel()
	_, pool, note, g := newDatabase(t)
	src := source(note(1), note(2)+g.SQL(), note(3))
	end := make(chan error, 1)
	go func() { end <- runner.Run(t.Context(), src, pool) }()
	locktest.Exec(t, pool, "SELECT pg_terminate_backend($1)", g.Reached())
	var failed *runner.MigrationError
	if err := <-end; !errors.As(err, &failed) || failed.Version != 2 || failed.Dirty || failed.Unknown || errors.Is(err, runner.ErrDirty) {
		t.Errorf("killed: %v", err)
	}
	wantVersion(t, pool, 1, false)
	wantJournal(t, pool, 1)
	g.Open()
	if err := runner.Run(t.Context(), src, pool); err != nil {
		t.Errorf("the next one: %v", err)
	}
	wantJournal(t, pool, 3)
	locktest.NoLockLeft(t, pool)
}

// TestMigrationKilledOutsideATransactionStaysDirty: no run continues before a person has checked.
func TestMigrationKilledOutsideATransactionStaysDirty(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	pool := pgtest.PoolOn(t, url)
	note := journal(t, pool)
	reader, err := pool.Begin(t.Context()) // whose end the index waits for
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = reader.Rollback(context.Background()) }()
	if _, err := reader.Exec(t.Context(), "INSERT INTO journal VALUES (0)"); err != nil {
		t.Fatal(err)
	}
	src := source("CREATE INDEX CONCURRENTLY late ON journal (version)", note(2))
	end := make(chan error, 1)
	go func() { end <- runner.Run(t.Context(), src, pool) }()
	pgtest.Eventually(t, locktest.Patience, "the index waits, and is killed", func() bool {
		return locktest.Scan[int](t, pool, "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE query LIKE 'CREATE INDEX%' AND wait_event_type = 'Lock' AND datname = current_database()") == 1
	})
	var failed *runner.MigrationError
	if err := <-end; !errors.As(err, &failed) || !failed.Dirty || failed.Version != 1 || failed.Before != -1 {
		t.Errorf("killed: %v", err)
	}
	var half *runner.DirtyError
	if err := runner.Run(t.Context(), src, pool); !errors.As(err, &half) || half.Version != 1 || !strings.Contains(err.Error(), "DELETE FROM") {
		t.Errorf("the next one: %v", err)
	}
	wantVersion(t, pool, 1, true)
	wantJournal(t, pool, 0)
	locktest.NoLockLeft(t, pool)
}

// TestFailedMigration leaves nothing, or its error says that it may have.
func TestFailedMigration(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		sql     string
		dirty   bool
		left    int // in the journal, of version 2
		contain string
	}{
		"half-way":                {"INSERT INTO journal VALUES (2); SELECT 1/0;", false, 0, "division by zero"},
		"in its last statement":   {"INSERT INTO journal VALUES (2); COMMIT; SELECT 1/0;", true, 1, "UPDATE"},
		"which needs its own":     {"INSERT INTO journal VALUES (2); CREATE INDEX CONCURRENTLY ON journal (version);", false, 0, "a file of its own"},
		"after a part of it":      {"INSERT INTO journal VALUES (2); COMMIT; BEGIN; VACUUM journal;", true, 1, "UPDATE"},
		"alone":                   {"CREATE UNIQUE INDEX CONCURRENTLY ON journal ((version * 0))", true, 0, "UPDATE"},
		"at the commit":           {"INSERT INTO journal VALUES (2); CREATE TABLE child (id int UNIQUE REFERENCES child DEFERRABLE INITIALLY DEFERRED); INSERT INTO child VALUES (1); ALTER TABLE journal ADD parent int REFERENCES child (id) DEFERRABLE INITIALLY DEFERRED; UPDATE journal SET parent = 9;", false, 0, ""},
		"with the wrong language": {"CREATE TABLE `a`;", false, 0, "syntax error"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.PoolOn(t, pgtest.Database(t))
			note := journal(t, pool)
			src := source(note(1)+note(1), c.sql, note(3))
			for try := range 2 {
				err := runner.Run(t.Context(), src, pool)
				var failed *runner.MigrationError
				switch {
				case c.dirty && try == 1:
					var half *runner.DirtyError
					if !errors.As(err, &half) || !errors.Is(err, runner.ErrDirty) || half.Version != 2 || half.Before != 1 {
						t.Errorf("the next run: %v", err)
					}
				case !errors.As(err, &failed) || !errors.Is(err, runner.ErrMigration) || failed.Version != 2 || failed.Name != "m" ||
					failed.Dirty != c.dirty || errors.Is(err, runner.ErrDirty) != c.dirty || !strings.Contains(err.Error(), c.contain):
					t.Errorf("the error is %v", err)
				}
			}
			if c.dirty {
				wantVersion(t, pool, 2, true)
			} else {
				wantVersion(t, pool, 1, false)
			}
			if n := locktest.Scan[int](t, pool, "SELECT count(*) FROM journal WHERE version = 2"); n != c.left {
				t.Errorf("%d of what it wrote are left, want %d", n, c.left)
			}
			locktest.NoLockLeft(t, pool)
		})
	}
}

// TestDirtyRemedyWorks: both statements of the error's text.
func TestDirtyRemedyWorks(t *testing.T) {
	t.Parallel()
	for _, done := range []bool{true, false} {
		pool := pgtest.PoolOn(t, pgtest.Database(t))
		note := journal(t, pool)
		fails := "CREATE UNIQUE INDEX CONCURRENTLY twice ON journal ((version * 0))"
		err := runner.Run(t.Context(), source(note(1)+note(1), fails), pool)
		remedy := strings.Split(err.Error(), "`") // the statements are the second and the fourth
		if len(remedy) != 5 {
			t.Fatalf("the error is %v", err)
		}
		locktest.Exec(t, pool, "DROP INDEX twice; DELETE FROM journal; INSERT INTO journal VALUES (1)")
		if done {
			locktest.Exec(t, pool, remedy[1])
		} else {
			locktest.Exec(t, pool, remedy[3])
		}
		if err := runner.Run(t.Context(), source(note(1), fails, "SELECT 1"), pool); err != nil {
			t.Errorf("after the remedy: %v", err)
		}
		if made := locktest.Scan[bool](t, pool, "SELECT to_regclass('twice') IS NOT NULL"); made == done {
			t.Errorf("taken for done: %v, applied: %v", done, made)
		}
	}
}

// TestOtherSourcesAreRefused: a later release has migrated the database, or another program.
func TestOtherSourcesAreRefused(t *testing.T) {
	t.Parallel()
	pool := pgtest.PoolOn(t, pgtest.Database(t))
	note := journal(t, pool)
	if err := runner.Run(t.Context(), source(note(1), note(2)), pool); err != nil {
		t.Fatal(err)
	}
	var e *runner.VersionError
	err := runner.Run(t.Context(), source(note(1)), pool)
	if !errors.As(err, &e) || !errors.Is(err, runner.ErrUnknownVersion) || e.Version != 2 || e.Last != 1 || e.Recorded != "m" {
		t.Errorf("an earlier release: %v", err)
	}
	if !strings.Contains(err.Error(), "AllowNewer") {
		t.Errorf("the error does not name AllowNewer: %v", err)
	}
	other := fstest.MapFS{"1_x.up.sql": {Data: []byte("SELECT 1/0")}, "2_y's \\'.up.sql": {Data: []byte("SELECT 1/0")}, "3_z.up.sql": {Data: []byte("SELECT 1/0")}}
	err = runner.Run(t.Context(), runner.Files(other, "."), pool)
	if !errors.As(err, &e) || !errors.Is(err, runner.ErrOtherSource) || e.Recorded != "m" || e.Name != `y's \'` || !strings.Contains(err.Error(), "WithVersionTable") {
		t.Errorf("another program: %v", err)
	}
	wantVersion(t, pool, 2, false)
	// The remedy works, also with the same lock, and in a schema with an odd name.
	locktest.Exec(t, pool, `CREATE SCHEMA "odd ""one"`)
	for n := range other {
		other[n].Data = []byte("SELECT 1")
	}
	for range 2 {
		if err := runner.Run(t.Context(), runner.Files(other, "."), pool, runner.WithVersionTable(`odd "one`, `its "versions`), runner.WithName("same")); err != nil {
			t.Errorf("in a table of its own: %v", err)
		}
	}
	if err := runner.Run(t.Context(), source(note(1), note(2), note(3)), pool, runner.WithName("same")); err != nil {
		t.Errorf("the first program: %v", err)
	}
	wantJournal(t, pool, 3)
	locktest.Exec(t, pool, "ALTER TABLE schema_migrations DROP CONSTRAINT schema_migrations_pkey; INSERT INTO schema_migrations VALUES (1, false)")
	if err := runner.Run(t.Context(), source(note(1)), pool); !errors.Is(err, runner.ErrOtherSource) {
		t.Errorf("a table with two rows: %v", err)
	}
}

// TestVersionTableCreatedAtOnce: as a process that was killed and the next one may do, sessions
// create the table at the same time, and each of them finds it. The control, the bare statement,
// fails. So does creating it where a type has its name.
func TestVersionTableCreatedAtOnce(t *testing.T) {
	t.Parallel()
	const sessions, tables = 8, 60
	pool := pgtest.PoolOn(t, pgtest.Database(t))
	bare := func(ctx context.Context, pool *pgxpool.Pool, table string) error {
		_, err := pool.Exec(ctx, "CREATE TABLE IF NOT EXISTS bare_"+table+" (version bigint NOT NULL PRIMARY KEY)")
		return err
	}
	failures := func(create func(context.Context, *pgxpool.Pool, string) error) map[string]int {
		counts := map[string]int{}
		var mu sync.Mutex
		for i := range tables {
			var wg sync.WaitGroup
			begin := make(chan struct{})
			for range sessions {
				wg.Go(func() {
					<-begin
					if err := create(t.Context(), pool, fmt.Sprint("t", i)); err != nil {
						mu.Lock()
						defer mu.Unlock()
						counts[pgtx.SQLState(err)]++
					}
				})
			}
			close(begin)
			wg.Wait()
		}
		return counts
	}
	if got := failures(runner.CreateVersionTable); len(got) > 0 {
		t.Errorf("failures by SQLSTATE: %v", got)
	}
	control := failures(bare)
	if len(control) == 0 {
		t.Errorf("%d sessions created each of %d tables at the same time, and none failed", sessions, tables)
	}
	t.Logf("failures of the bare statement by SQLSTATE: %v", control)
	locktest.Exec(t, pool, "CREATE TYPE taken AS ENUM ()")
	if err := runner.CreateVersionTable(t.Context(), pool, "taken"); pgtx.SQLState(err) != pgtx.DuplicateObject {
		t.Errorf("a type has the table's name: %v", err)
	}
}
