package fencing_test

import (
	"strings"
	"testing"
	"time"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/schema"
)

// TestPartitionsThatComeLater are fenced when they are attached, and get the rest when the
// table is protected again.
func TestPartitionsThatComeLater(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]fencing.Option{"per row": nil, "per table": {fencing.PerTable()}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newFixture(t)
			table := g.table("t", "(id int, v int) PARTITION BY RANGE (id)")
			g.sql("CREATE TABLE pglock.p1 PARTITION OF " + table + " FOR VALUES FROM (0) TO (10)")
			g.protect(table, opts...)
			g.sql("CREATE TABLE pglock.p2 PARTITION OF " + table + " FOR VALUES FROM (10) TO (20)")
			g.sql("CREATE TABLE pglock.p3 (id int, v int, fence_token bigint)")
			g.sql("INSERT INTO pglock.p3 VALUES (20, 0, 1)")
			g.sql("ALTER TABLE " + table + " ATTACH PARTITION pglock.p3 FOR VALUES FROM (20) TO (30)")
			early, late := g.grant("early", time.Minute), g.grant("late", time.Minute)
			names := settings(g)
			for i, part := range []string{"p1", "p2", "p3"} {
				q := schema.Quote(g.schema) + "." + part
				g.open(q)
				for _, target := range []string{q, table} {
					insert := sprintf("INSERT INTO %s VALUES (%d, 0)", target, 10*i+1)
					want(t, "without a grant into "+target, g.unbound(insert), fencing.ErrUnfenced)
					if name == "per row" {
						want(t, "early into "+target, g.as(early, insert), nil)
					}
					want(t, "late into "+target, g.as(late, insert), nil)
					want(t, "early after late in "+target, g.as(early, sprintf("UPDATE %s SET v = 1 WHERE id = %d", target, 10*i+1)), fencing.ErrStale)
					forged := sprintf("SELECT set_config('pg'||'%s', '{\"late\": 99}', true), set_config('pg'||'%s', '99', true)",
						strings.TrimPrefix(names["grants"], "pg"), strings.TrimPrefix(names["token"], "pg"))
					want(t, "forged into "+target, g.unbound(forged, insert), fencing.ErrStale)
				}
				if part != "p1" {
					continue
				}
				want(t, "TRUNCATE of a partition", g.unbound("TRUNCATE "+q), fencing.ErrUnfenced)
			}
			if n := g.statementTriggers(); n != 2 {
				t.Fatalf("control: %d tables with statement triggers before the repair", n)
			}
			g.protect(table, opts...)
			if n := g.statementTriggers(); n != 4 {
				t.Errorf("%d tables with statement triggers after the repair", n)
			}
			want(t, "TRUNCATE of a later partition", g.unbound("TRUNCATE "+schema.Quote(g.schema)+".p2"), fencing.ErrUnfenced)
		})
	}
}

func (g fixture) statementTriggers() int {
	g.t.Helper()
	return value[int](g, "SELECT count(*) FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid WHERE tgname = 'zz_pglock_fence' AND relnamespace = $1::text::regnamespace", schema.Quote(g.schema))
}

// TestRowsMoveBetweenPartitions with their tokens.
func TestRowsMoveBetweenPartitions(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]fencing.Option{"strict": nil, "permissive": {fencing.Permissive()}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newFixture(t)
			table := g.table("t", "(id int, v int) PARTITION BY LIST (id)")
			g.sql("CREATE TABLE pglock.p1 PARTITION OF " + table + " FOR VALUES IN (1)")
			g.sql("CREATE TABLE pglock.p2 PARTITION OF " + table + " FOR VALUES IN (2)")
			g.protect(table, opts...)
			early, late := g.grant("early", time.Minute), g.grant("late", time.Minute)
			want(t, "late", g.as(late, "INSERT INTO "+table+" VALUES (1, 0)"), nil)
			want(t, "early moves it", g.as(early, "UPDATE "+table+" SET id = 2"), fencing.ErrStale)
			moved := g.unbound("UPDATE " + table + " SET id = 2")
			if name == "strict" {
				want(t, "moved without a grant", moved, fencing.ErrUnfenced)
				want(t, "late moves it", g.as(late, "UPDATE "+table+" SET id = 2"), nil)
			} else {
				want(t, "moved without a grant", moved, nil)
			}
			g.holds(table, "(2,0,%d)", late.Token)
			want(t, "early, after the move", g.as(early, "DELETE FROM "+table), fencing.ErrStale)
		})
	}
}

// TestADetachedPartitionIsOnItsOwn: its rows are not fenced any more, which is told; it can be
// protected again, and restored.
func TestADetachedPartitionIsOnItsOwn(t *testing.T) {
	t.Parallel()
	g := newFixture(t)
	table := g.table("t", "(id int, v int) PARTITION BY LIST (id)")
	part := g.table("p", "(id int, v int)")
	before := g.tableOnly(part)
	g.sql("CREATE TABLE pglock.rest PARTITION OF " + table + " DEFAULT")
	g.sql("ALTER TABLE " + table + " ATTACH PARTITION " + part + " FOR VALUES IN (1)")
	g.protect(table)
	enabled := func() bool {
		return value[bool](g, "SELECT bool_and(enabled) FROM pglock.protected_tables")
	}
	if !enabled() {
		t.Error("not enabled at first")
	}
	g.sql("ALTER TABLE " + part + " DISABLE TRIGGER zz_pglock_fence_insert")
	if enabled() {
		t.Error("a trigger of a partition that is switched off is not told")
	}
	g.sql("ALTER TABLE " + part + " ENABLE TRIGGER zz_pglock_fence_insert")
	g.sql("ALTER TABLE " + table + " DETACH PARTITION " + part)
	if enabled() {
		t.Error("a detached partition counts as protected")
	}
	want(t, "control: a write to it without a grant", g.unbound("INSERT INTO "+part+" VALUES (1)"), nil)
	want(t, "the rest", g.unbound("INSERT INTO "+table+" VALUES (1)"), fencing.ErrUnfenced)
	for range 2 {
		g.protect(part, fencing.PerTable()) // not as it was
		if !enabled() {
			t.Error("not enabled after Protect")
		}
		want(t, "a write after Protect", g.unbound("INSERT INTO "+part+" VALUES (1)"), fencing.ErrUnfenced)
		want(t, "a TRUNCATE after Protect", g.unbound("TRUNCATE "+part), fencing.ErrUnfenced)
	}
	f := g.grant("n", time.Minute)
	want(t, "a write with a grant", g.as(f, "INSERT INTO "+part+" VALUES (1)"), nil)
	if err := g.unbound("ALTER TABLE " + table + " ATTACH PARTITION " + part + " FOR VALUES IN (1)"); err == nil {
		t.Error("what is protected by itself was attached")
	}
	if err := fencing.Unprotect(t.Context(), g.pool, part, fencing.WithSchema(g.schema)); err != nil {
		t.Fatal(err)
	}
	if after := g.tableOnly(part); after != before {
		t.Errorf("Unprotect left %s, at first it was %s", after, before)
	}
}

// TestChildrenThatComeLater are refused by the next Protect, and told by the list.
func TestChildrenThatComeLater(t *testing.T) {
	t.Parallel()
	g := newFixture(t)
	table := g.table("t", columns)
	g.protect(table)
	g.sql("CREATE TABLE pglock.child () INHERITS (" + table + ")")
	want(t, "Protect", fencing.Protect(t.Context(), g.pool, table, fencing.WithSchema(g.schema)), fencing.ErrNoTable)
	if value[bool](g, "SELECT enabled FROM pglock.protected_tables") {
		t.Error("its children's rows count as protected")
	}
}
