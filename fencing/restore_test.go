package fencing_test

import (
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/migrations"
)

// TestRestoredTableIsProtected: a dump of the database keeps columns, rows with their tokens,
// functions and triggers.
func TestRestoredTableIsProtected(t *testing.T) {
	t.Parallel()
	from, to := pgtest.Database(t), pgtest.Database(t)
	g := fixture{t: t, pool: pgtest.PoolOn(t, from), schema: "pglock"}
	ok(t, migrations.Up(t.Context(), g.pool))
	g.writer = g.pool
	g.sql("CREATE TABLE whole " + columns + "; CREATE TABLE named " + columns + "; CREATE TABLE parted (id int, v int) PARTITION BY LIST (id); CREATE TABLE part PARTITION OF parted DEFAULT")
	g.protect("whole")
	g.protect("named", fencing.NamedBy("n{id}"), fencing.WithColumn("Stamp"))
	g.protect("parted", fencing.Permissive())
	early, late := g.grant("n1", time.Hour), g.grant("n2", time.Hour)
	for _, table := range []string{"whole", "named", "parted"} {
		want(t, table, g.as(late, "INSERT INTO "+table+" VALUES (2, 0)"), nil)
	}
	dump := g.tool("pg_dump", "--dbname", from, "--no-owner")
	if dump == "" {
		return // said so
	}
	restored := exec.CommandContext(t.Context(), pgtest.Program(t, "psql"), "--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1", "--dbname", to)
	restored.Stdin = strings.NewReader(dump)
	if out, err := restored.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	g.pool = pgtest.PoolOn(t, to)
	g.writer = g.pool
	for _, table := range []string{"whole", "named", "parted"} {
		g.holds(table, "(2,0,%d)", late.Token)
		want(t, table+" with the later grant", g.as(late, "UPDATE "+table+" SET v = 1"), nil)
	}
	want(t, "without a grant", g.unbound("UPDATE whole SET v = 2"), fencing.ErrUnfenced)
	want(t, "without a grant, permissive", g.unbound("UPDATE parted SET v = 2"), nil)
	want(t, "with the earlier grant", g.as(early, "UPDATE whole SET v = 3"), fencing.ErrStale)
	want(t, "with another lock's", g.as(early, "UPDATE named SET v = 2"), fencing.ErrOtherLock)
	want(t, "with the earlier grant, permissive", g.as(early, "DELETE FROM part"), fencing.ErrStale)
	if n := value[int](g, "SELECT count(*) FROM pglock.protected_tables WHERE enabled"); n != 3 {
		t.Errorf("%d tables are protected", n)
	}
	g.sql("CREATE TABLE later PARTITION OF parted FOR VALUES IN (99)")
	want(t, "a partition that came after the dump", g.unbound("INSERT INTO later VALUES (99, 0)"), fencing.ErrUnfenced)
	g.sql("CREATE TABLE another " + columns)
	g.protect("another") // its number is a new one
	ok(t, fencing.Unprotect(t.Context(), g.pool, "whole"))
	want(t, "another, while others are unprotected", g.unbound("INSERT INTO another VALUES (1)"), fencing.ErrUnfenced)
}
