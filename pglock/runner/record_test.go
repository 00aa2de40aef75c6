package runner_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock/runner"
)

// numbered returns a source of files of these versions, each of which notes its version.
func numbered(versions ...int) runner.Source {
	files := fstest.MapFS{}
	for _, v := range versions {
		files[fmt.Sprintf("%d_n%d.up.sql", v, v)] = &fstest.MapFile{Data: []byte(note(v))}
	}
	return runner.Files(files, ".")
}

// ran returns the versions in the order in which their files ran.
func (f *fixture) ran() string {
	f.Helper()
	return locktest.Scan[string](f.T, f.pool, "SELECT coalesce(string_agg(version::text, ' ' ORDER BY ctid), '') FROM journal")
}

// record returns the versions of the record.
func (f *fixture) record() string {
	f.Helper()
	return locktest.Scan[string](f.T, f.pool, "SELECT coalesce(string_agg(version::text, ' ' ORDER BY version), '') FROM schema_migrations_files WHERE NOT dirty")
}

// wantRan fails unless these files ran in that order, and the version is that one and clean.
func (f *fixture) wantRan(version int, ran string) {
	f.Helper()
	if got := f.ran(); got != ran {
		f.Errorf("files that ran: %q, want %q", got, ran)
	}
	if got := locktest.Scan[string](f.T, f.pool, "SELECT version || ' ' || dirty FROM schema_migrations"); got != fmt.Sprint(version, false) {
		f.Errorf("version and dirty: %s, want %d", got, version)
	}
}

// TestLateMigrationIsRefusedOrRun: a file whose version is below the database's was merged late.
// Run names it and runs nothing, and with AllowOutOfOrder it runs the file before later ones.
func TestLateMigrationIsRefusedOrRun(t *testing.T) {
	t.Parallel()
	eachLock(t, func(f *fixture) {
		f.wantNil(f.start(numbered(1, 5)))
		err := f.run(numbered(1, 2, 3, 5, 6))
		if !errors.Is(err, runner.ErrOutOfOrder) || !strings.Contains(err.Error(), "is at version 5: not applied: 2_n2, 3_n3: ") || !strings.Contains(err.Error(), "AllowOutOfOrder") {
			f.Errorf("without the option: %v", err)
		}
		f.wantRan(5, "1 5")
		f.wantNil(f.start(numbered(1, 2, 3, 5, 6), runner.AllowOutOfOrder()))
		f.wantRan(6, "1 5 2 3 6")
		f.wantNil(f.start(numbered(1, 2, 3, 5, 6)))
		// A replica of the earlier release has fewer files, and its version is lower.
		f.wantNil(f.start(numbered(1, 5), runner.AllowNewer()), f.start(numbered(1, 6)))
		// Its own late file is not hidden by AllowNewer.
		if err := f.run(numbered(1, 4, 5), runner.AllowNewer()); !errors.Is(err, runner.ErrOutOfOrder) {
			f.Errorf("a late file of an earlier release: %v", err)
		}
		f.wantNil(f.start(numbered(1, 4, 5), runner.AllowNewer(), runner.AllowOutOfOrder()))
		f.wantRan(6, "1 5 2 3 6 4")
		if got := f.record(); got != "1 2 3 4 5 6" {
			f.Errorf("recorded: %s", got)
		}
		// The record names the file that led to the version.
		other := runner.Files(fstest.MapFS{"6_other.up.sql": {Data: []byte("SELECT 1")}}, ".")
		if err := f.run(other); !errors.Is(err, runner.ErrOtherSource) {
			f.Errorf("another source: %v", err)
		}
		// The remedy for a file that another tool has applied.
		err = f.run(numbered(1, 0, 5, 6))
		remedy := strings.Split(err.Error(), "`")
		if len(remedy) != 3 {
			f.Fatalf("the error is %v", err)
		}
		f.exec(remedy[1])
		f.wantNil(f.start(numbered(1, 0, 5, 6)))
		f.wantRan(6, "1 5 2 3 6 4")
	})
}

// TestFirstRecordCountsTheVersion: without a record, what is not above the version counts as
// applied, also if nothing is left to run. A role that may only read records nothing. Files that
// golang-migrate applies later count as well, and a file between recorded ones is late.
func TestFirstRecordCountsTheVersion(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.wantNil(f.startUp(stock(t, f.url), note(1), note(2)))
	f.exec("GRANT SELECT ON schema_migrations TO PUBLIC")
	reader := locktest.PoorRole(t, f.url, "reader of "+t.Name())
	for _, grant := range []string{"", "GRANT CREATE ON SCHEMA public TO PUBLIC"} { // which lets it create, but not compare
		f.exec(grant)
		if err := runner.Run(t.Context(), source(note(1), note(2)), reader); err != nil {
			t.Errorf("a reader, %s: %v", grant, err)
		}
	}
	readOnly := pgtest.PoolOn(t, f.url, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["default_transaction_read_only"] = "on" })
	if err := runner.Run(t.Context(), source(note(1), note(2)), readOnly); err != nil {
		t.Errorf("in transactions that are read-only, as on a standby: %v", err)
	}
	if locktest.Scan[bool](t, f.pool, "SELECT to_regclass('schema_migrations_files') IS NOT NULL") {
		t.Error("they have created the record")
	}
	f.wantNil(f.start(source(note(1), note(2)), runner.WithKey(1)), f.start(source(note(1), note(2))))
	if got := f.record(); got != "1 2" {
		t.Errorf("recorded: %s", got)
	}
	f.wantNil(f.startUp(stock(t, f.url), note(1), note(2), note(3), note(4)))
	f.wantNil(f.start(source(note(1), note(2), note(3)), runner.AllowNewer())) // changes nothing
	if got := f.record(); got != "1 2" {
		t.Errorf("recorded by an earlier release: %s", got)
	}
	f.wantNil(f.start(source(note(1), note(2), note(3), note(4))))
	f.want(4, false, 4)
	if got := f.record(); got != "1 2 3 4" {
		t.Errorf("recorded: %s", got)
	}
	// The first version may be 0.
	f.exec("DELETE FROM schema_migrations_files")
	f.wantNil(f.start(numbered(0, 4)))
	if got := f.record(); got != "0 4" {
		t.Errorf("recorded: %s", got)
	}
	f.exec("DROP TABLE schema_migrations_files")
	f.wantNil(f.start(source(note(1), note(2), note(3), note(4))))
	f.exec("DELETE FROM schema_migrations_files WHERE version = 3")
	if err := f.run(source(note(1), note(2), note(3), note(4))); !errors.Is(err, runner.ErrOutOfOrder) {
		t.Errorf("a file between recorded ones: %v", err)
	}
	f.noLockLeft()
}

// TestFirstRecordOfAVersionThatChanges: golang-migrate, whose lock is another, undoes migrations
// while a run records them as applied. The run waits for the end of that, and then finds them
// missing.
func TestFirstRecordOfAVersionThatChanges(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.wantNil(f.startUp(stock(t, f.url), note(1), note(2)))
	tx, err := f.pool.Begin(t.Context())
	ok(t, err)
	defer tx.Rollback(context.Background()) //nolint:errcheck // no effect after the commit
	_, err = tx.Exec(t.Context(), "UPDATE schema_migrations SET version = 1")
	ok(t, err)
	end := f.start(source(note(1), note(2)))
	pgtest.Eventually(t, "the run waits, or has ended", func() bool {
		return len(end) > 0 || locktest.Scan[int](t, f.pool, "SELECT count(*) FROM pg_stat_activity WHERE $1 = ANY(pg_blocking_pids(pid))", tx.Conn().PgConn().PID()) == 1
	})
	ok(t, tx.Commit(t.Context()))
	f.wantNil(end)
	f.wantRan(2, "1 2 2")
	if got := f.record(); got != "1 2" {
		t.Errorf("recorded: %s", got)
	}
}

// TestUndoneMigrationRunsAgain: golang-migrate lowers the version, by migrations down or by force.
// The rows above it are not of applied files any more.
func TestUndoneMigrationRunsAgain(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.wantNil(f.start(numbered(1, 4, 6)))
	d := stock(t, f.url)
	ok(t, errors.Join(d.Lock(), d.SetVersion(1, false), d.Unlock()))
	f.wantNil(f.start(numbered(1, 2, 4)))
	f.wantRan(4, "1 4 6 2 4")
	if got := f.record(); got != "1 2 4" {
		t.Errorf("recorded: %s", got)
	}
	ok(t, errors.Join(d.Lock(), d.SetVersion(-1, false), d.Unlock()))
	f.wantNil(f.start(numbered(1, 2, 3)))
	f.wantRan(3, "1 4 6 2 4 1 2 3")
}

// TestChangedMigrationIsReported, and AllowChanged accepts it without running it. Line endings and
// names do not count. A version that had no file to run counts as changed when it gets one.
func TestChangedMigrationIsReported(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	files := fstest.MapFS{
		"1_a.up.sql": {Data: []byte("SELECT 1;\n" + note(1))}, "2_b.up.sql": {Data: []byte(note(2))},
		"3_c.down.sql": {Data: []byte("SELECT 1")}, "4_d.up.sql": {Data: []byte(note(4))},
	}
	src := runner.Files(files, ".")
	f.wantNil(f.start(src))
	files["1_renamed.up.sql"] = &fstest.MapFile{Data: []byte("SELECT 1;\r\n" + note(1))}
	delete(files, "1_a.up.sql")
	files["4_renamed.up.sql"] = files["4_d.up.sql"]
	delete(files, "4_d.up.sql")
	f.wantNil(f.start(src))
	delete(files, "4_renamed.up.sql")
	files["2_e.up.sql"] = &fstest.MapFile{Data: []byte(note(2) + "-- another file")}
	delete(files, "2_b.up.sql")
	files["3_c.up.sql"] = &fstest.MapFile{Data: []byte(note(3))}
	files["4_d.up.sql"] = &fstest.MapFile{Data: []byte(note(4) + "-- ")}
	files["5_f.up.sql"] = &fstest.MapFile{Data: []byte(note(5))}
	for _, allowed := range [][]uint{nil, {2}, {3, 4}} {
		err := f.run(src, runner.AllowChanged(allowed...))
		if !errors.Is(err, runner.ErrChanged) || strings.Contains(err.Error(), `2_e (applied as "b")`) == (len(allowed) == 1) ||
			strings.Contains(err.Error(), `3_c (applied as ""), 4_d (applied as "d"): `) == (len(allowed) == 2) {
			t.Errorf("allowed %v: %v", allowed, err)
		}
	}
	f.wantRan(4, "1 2 4")
	f.wantNil(f.start(src, runner.AllowChanged(2), runner.AllowChanged(3, 4)))
	f.wantRan(5, "1 2 4 5")
}

// TestLateMigrationOutsideATransaction: its process dies, or it fails. The version is dirty, and
// both remedies of the error work: the version stays, and the file counts as applied or runs again.
func TestLateMigrationOutsideATransaction(t *testing.T) {
	t.Parallel()
	const unique = "CREATE UNIQUE INDEX CONCURRENTLY late ON journal (version)"
	files := func(sql string) runner.Source {
		return runner.Files(fstest.MapFS{
			"1_a.up.sql": {Data: []byte(note(7) + note(7))}, "2_late.up.sql": {Data: []byte(sql)},
			"3_c.up.sql": {Data: []byte("SELECT 1")}, "4_d.up.sql": {Data: []byte("SELECT 1")},
		}, ".")
	}
	for _, done := range []bool{true, false} {
		t.Run(fmt.Sprintf("done %v", done), func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			src := files(unique)
			f.wantNil(f.start(files("")))
			var failed *runner.MigrationError
			first := f.run(src, runner.AllowOutOfOrder(), runner.AllowChanged(2))
			if first != nil {
				t.Errorf("an empty file counts as applied: %v", first)
			}
			f.exec("DELETE FROM schema_migrations_files WHERE version = 2")
			first = f.run(src, runner.AllowOutOfOrder())
			if !errors.As(first, &failed) || !failed.Dirty || failed.Version != 2 || failed.Before != 4 {
				t.Fatalf("it failed with %v", first)
			}
			if got := locktest.Scan[string](t, f.pool, "SELECT version || ' ' || dirty FROM schema_migrations"); got != "4 true" {
				t.Errorf("golang-migrate finds version and dirty: %s", got)
			}
			err := f.run(src, runner.AllowOutOfOrder())
			if !errors.Is(err, runner.ErrDirty) || !strings.Contains(err.Error(), "migration 2 was begun") {
				t.Errorf("the next run: %v", err)
			}
			_, of, _ := strings.Cut(first.Error(), "check what was applied")
			if !strings.HasSuffix(err.Error(), of) || of == "" {
				t.Errorf("two remedies: %v, and %v", first, err)
			}
			remedy := strings.Split(err.Error(), "`")
			f.exec("DROP INDEX late; DELETE FROM journal")
			if done {
				f.exec(remedy[1])
			} else {
				f.exec(remedy[3])
			}
			f.wantNil(f.start(src, runner.AllowOutOfOrder()))
			if made := locktest.Scan[bool](t, f.pool, "SELECT to_regclass('late') IS NOT NULL"); made == done {
				t.Errorf("taken for done: %v, applied: %v", done, made)
			}
			f.wantRan(4, "")
			if got := f.record(); got != "1 2 3 4" {
				t.Errorf("recorded: %s", got)
			}
			f.noLockLeft()
		})
	}
}

// TestLateFileWithoutStatements is not refused, because it has nothing to run, until it gets some.
func TestLateFileWithoutStatements(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.wantNil(f.start(numbered(1, 4)))
	files := fstest.MapFS{
		"1_n1.up.sql": {Data: []byte(note(1))}, "2_n2.up.sql": {Data: []byte(" \n")},
		"3_n3.down.sql": {Data: []byte("SELECT 1/0")}, "4_n4.up.sql": {Data: []byte(note(4))},
	}
	f.wantNil(f.start(runner.Files(files, ".")))
	files["3_n3.up.sql"] = &fstest.MapFile{Data: []byte(note(3))}
	if err := f.run(runner.Files(files, ".")); !errors.Is(err, runner.ErrOutOfOrder) || strings.Contains(err.Error(), "2_n2") {
		t.Errorf("with statements: %v", err)
	}
	f.wantRan(4, "1 4")
}

// TestLateMigrationThatFailsLeavesNothing: it runs again when it is mended.
func TestLateMigrationThatFailsLeavesNothing(t *testing.T) {
	t.Parallel()
	for name, fails := range map[string]string{
		"in a transaction":      note(2) + "SELECT 1/0;",
		"which needs its own":   note(2) + "CREATE INDEX CONCURRENTLY ON journal (version);",
		"with a ROLLBACK":       note(2) + "ROLLBACK;",
		"with a ROLLBACK first": "ROLLBACK; BEGIN;" + note(2),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			files := fstest.MapFS{"1_n1.up.sql": {Data: []byte(note(1))}, "3_n3.up.sql": {Data: []byte(note(3))}}
			src := runner.Files(files, ".")
			f.wantNil(f.start(src))
			files["2_n2.up.sql"] = &fstest.MapFile{Data: []byte(fails)}
			var failed *runner.MigrationError
			if err := f.run(src, runner.AllowOutOfOrder()); !errors.As(err, &failed) || failed.Version != 2 || failed.Dirty || failed.Unknown {
				t.Errorf("it failed with %v", err)
			}
			f.wantRan(3, "1 3")
			files["2_n2.up.sql"] = &fstest.MapFile{Data: []byte(note(2))}
			f.wantNil(f.start(src, runner.AllowOutOfOrder()))
			f.wantRan(3, "1 3 2")
		})
	}
}

// TestLateMigrationRunsOnce: a run that has lost its lock and the next one both run the late file.
// One waits for the other's transaction, and finds the file applied.
func TestLateMigrationRunsOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.wantNil(f.start(numbered(1, 3)))
	src := runner.Files(fstest.MapFS{
		"1_n1.up.sql": {Data: []byte(note(1))}, "2_n2.up.sql": {Data: []byte(note(2) + f.gate.SQL())},
		"3_n3.up.sql": {Data: []byte(note(3))}, "4_n4.up.sql": {Data: []byte(note(4))},
	}, ".")
	first := f.start(src, runner.AllowOutOfOrder())
	worker := f.gate.Reached()
	f.endLock()
	second := f.start(src, runner.AllowOutOfOrder())
	pgtest.Eventually(t, "the second waits for the first one's transaction", func() bool {
		return locktest.Scan[int](t, f.pool, "SELECT count(*) FROM pg_stat_activity WHERE $1 = ANY(pg_blocking_pids(pid))", worker) == 1
	})
	f.gate.Open()
	t.Log("by its lost lock, unless the second one has done the rest:", <-first)
	f.wantNil(second)
	f.wantRan(4, "1 3 2 4")
}
