package fencing_test

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/schema"
)

// TestNewPartitionsRefuseWrites, with a grant or without, through the table or directly, until the
// table is protected again.
func TestNewPartitionsRefuseWrites(t *testing.T) {
	t.Parallel()
	each(t, map[string][]fencing.Option{"strict": nil, "permissive": {fencing.Permissive()}}, func(t *testing.T, name string, opts []fencing.Option) { //nolint:thelper // it is the test itself
		g := newFixture(t)
		table := g.table("t", "(id int, v int) PARTITION BY RANGE (id)")
		g.sql("CREATE TABLE pglock.p1 PARTITION OF " + table + " FOR VALUES FROM (0) TO (10)")
		g.protect(table, opts...)
		g.sql("CREATE TABLE pglock.p2 PARTITION OF " + table + " FOR VALUES FROM (10) TO (20)")
		g.sql("CREATE TABLE pglock.p3 (id int, v int, fence_token bigint)")
		g.sql("INSERT INTO pglock.p3 VALUES (20, 0, 1)")
		g.sql("ALTER TABLE " + table + " ATTACH PARTITION pglock.p3 FOR VALUES FROM (20) TO (30)")
		early, late := g.grant("early", time.Minute), g.grant("late", time.Minute)
		enabled := func() bool { return value[bool](g, "SELECT enabled FROM pglock.protected_tables") }
		if enabled() {
			t.Error("the table counts as protected before the repair")
		}
		for _, part := range []string{"p2", "p3"} {
			q := schema.Quote(g.schema) + "." + part
			g.open(q)
			at := map[string]int{"p2": 10, "p3": 20}[part]
			for _, target := range []string{q, table} {
				for _, write := range []string{"INSERT INTO %s VALUES (%d, 0)", "UPDATE %s SET v = 1 WHERE id = %d", "DELETE FROM %s WHERE id = %d"} {
					if part == "p2" && !strings.HasPrefix(write, "INSERT") {
						continue // it has no rows
					}
					sql := sprintf(write, target, at)
					want(t, sql+" without a grant", g.unbound(sql), fencing.ErrUnfenced)
					want(t, sql+" with a grant", g.as(late, sql), fencing.ErrUnfenced)
				}
			}
			want(t, "a row moves there", g.as(late, "INSERT INTO "+table+" VALUES (1, 0)", sprintf("UPDATE %s SET id = %d WHERE id = 1", table, at)), fencing.ErrUnfenced)
		}
		want(t, "control: the partition that was there", g.as(late, "INSERT INTO "+table+" VALUES (1, 0)"), nil)
		g.protect(table, opts...)
		if !enabled() {
			t.Error("the table does not count as protected after the repair")
		}
		q := schema.Quote(g.schema) + ".p3"
		for _, target := range []string{q, table} {
			want(t, "late into "+target, g.as(late, "UPDATE "+target+" SET v = v + 1 WHERE id = 20"), nil)
			want(t, "early after late in "+target, g.as(early, "UPDATE "+target+" SET v = 7 WHERE id = 20"), fencing.ErrStale)
		}
		if name == "strict" {
			want(t, "TRUNCATE of a later partition", g.unbound("TRUNCATE "+q), fencing.ErrUnfenced)
		}
		want(t, "TRUNCATE of a later partition by an early grant", g.as(early, "TRUNCATE "+q), fencing.ErrStale)
	})
}

// TestProtectAtOnce: replicas that start together all succeed, at first and after a partition was
// attached.
func TestProtectAtOnce(t *testing.T) {
	t.Parallel()
	g := newFixture(t)
	table := g.table("t", "(id int, v int) PARTITION BY LIST (id)")
	for round := range 10 {
		var all sync.WaitGroup
		for range 6 {
			all.Go(func() {
				want(t, "Protect", fencing.Protect(t.Context(), g.pool, table, fencing.WithSchema(g.schema)), nil)
			})
		}
		all.Wait()
		if n := value[int](g, "SELECT count(*) FROM pg_trigger WHERE tgrelid = $1::text::regclass", table); n != 8 || !value[bool](g, "SELECT enabled FROM pglock.protected_tables") {
			t.Errorf("%d triggers, or the table does not count as protected", n)
		}
		g.sql(sprintf("CREATE TABLE pglock.p%d PARTITION OF %s FOR VALUES IN (%d)", round, table, round))
	}
	g.protect(table)
	want(t, "a write to the last partition", g.as(g.grant("n", time.Minute), "INSERT INTO "+table+" VALUES (9, 0)"), nil)
}

// TestDetachedPartitionRefusesWrites until it is protected again by itself, or unprotected.
func TestDetachedPartitionRefusesWrites(t *testing.T) {
	t.Parallel()
	g := newFixture(t)
	table := g.table("t", "(id int, v int) PARTITION BY LIST (id)")
	part := g.table("p", "(id int, v int)")
	before := g.definition(part)
	g.sql("CREATE TABLE pglock.rest PARTITION OF " + table + " DEFAULT")
	g.sql("ALTER TABLE " + table + " ATTACH PARTITION " + part + " FOR VALUES IN (1)")
	g.protect(table)
	early, f := g.grant("n", time.Minute), g.grant("n", time.Minute)
	want(t, "a row", g.as(f, "INSERT INTO "+table+" VALUES (1)"), nil)
	next := g.grant("n", time.Minute)
	enabled := func() bool {
		return value[bool](g, "SELECT bool_and(enabled) FROM pglock.protected_tables")
	}
	if !enabled() {
		t.Error("not enabled at first")
	}
	g.sql("ALTER TABLE " + part + " DISABLE TRIGGER zz_pglock_fence_inserted")
	if enabled() {
		t.Error("a disabled trigger of a partition is not listed")
	}
	g.sql("ALTER TABLE " + part + " ENABLE TRIGGER zz_pglock_fence_inserted")
	g.sql("ALTER TABLE " + table + " DETACH PARTITION " + part)
	if enabled() {
		t.Error("a detached partition counts as protected")
	}
	want(t, "a write to it without a grant", g.unbound("UPDATE "+part+" SET v = 1"), fencing.ErrUnfenced)
	want(t, "a write that is not stamped any more", g.as(next, "UPDATE "+part+" SET v = 1"), fencing.ErrStale)
	want(t, "the rest", g.unbound("INSERT INTO "+table+" VALUES (1)"), fencing.ErrUnfenced)
	for range 2 {
		g.protect(part, fencing.Permissive()) // not as it was
		if !enabled() {
			t.Error("not enabled after Protect")
		}
		want(t, "control: a write after Protect", g.unbound("INSERT INTO "+part+" VALUES (1)"), nil)
		want(t, "with an ended grant", fencing.Bind(t.Context(), g.begin(), early), fencing.ErrStale)
	}
	want(t, "a write with a grant", g.as(next, "UPDATE "+part+" SET v = 2"), nil)
	if err := g.unbound("ALTER TABLE " + table + " ATTACH PARTITION " + part + " FOR VALUES IN (1)"); err == nil {
		t.Error("what is protected by itself was attached")
	}
	ok(t, fencing.Unprotect(t.Context(), g.pool, part, fencing.WithSchema(g.schema)))
	if after := g.definition(part); after != before {
		t.Errorf("Unprotect left %s, at first it was %s", after, before)
	}
}

// TestP71_PartitionThatComesBackIsANewOne: a partition that is detached, unprotected and attached
// again refuses writes until the table is protected again, also in a partition of a partition. The
// control shows what the trigger of new partitions keeps out.
func TestP71_PartitionThatComesBackIsANewOne(t *testing.T) {
	t.Parallel()
	each(t, map[string]string{"of the table": "root", "of a partition": "mid"}, func(t *testing.T, _ string, of string) { //nolint:thelper // it is the test itself
		g := newFixture(t)
		outsider := g.role()
		table := g.table("root", "(id int, v int) PARTITION BY LIST (id)")
		g.sql("CREATE TABLE pglock.mid PARTITION OF " + table + " FOR VALUES IN (1, 2) PARTITION BY LIST (id)")
		if of == "root" {
			g.sql("DROP TABLE pglock.mid")
		}
		parent, part := schema.Quote(g.schema)+"."+of, g.table("part", "(id int, v int)")
		attach := func() {
			g.sql("ALTER TABLE " + parent + " ATTACH PARTITION " + part + " FOR VALUES IN (1)")
		}
		attach()
		role := schema.Quote(pgtest.RoleOf(outsider))
		g.sql("GRANT USAGE ON SCHEMA " + schema.Quote(g.schema) + " TO " + role + "; GRANT SELECT, INSERT, UPDATE, DELETE ON " + table + ", " + part + " TO " + role)
		g.protect(table)
		f := g.grant("n", time.Hour)
		want(t, "control: before it leaves", g.as(f, "INSERT INTO "+part+" VALUES (1, 0)", "UPDATE "+table+" SET v = 1"), nil)

		g.sql("ALTER TABLE " + parent + " DETACH PARTITION " + part)
		want(t, "Unprotect", fencing.Unprotect(t.Context(), g.pool, part, fencing.WithSchema(g.schema)), nil)
		g.sql("ALTER TABLE " + part + " ADD COLUMN IF NOT EXISTS fence_token bigint")
		attach()
		attack := []string{"SELECT " + g.forge("n", huge), sprintf("UPDATE %s SET v = 666, fence_token = %d", part, int64(huge))}
		refused(t, "a forged token", g.run(outsider, attack...))
		want(t, "through the table", g.as(f, "UPDATE "+table+" SET v = 2"), fencing.ErrUnfenced)
		if value[bool](g, "SELECT enabled FROM pglock.protected_tables") {
			t.Error("it counts as protected")
		}
		g.sql("ALTER TABLE " + part + " DISABLE TRIGGER zz_pglock_fence_attached")
		want(t, "control: without that trigger", g.run(outsider, attack...), nil)
		g.reset(part, f.Token)
		g.protect(table)
		want(t, "a later grant, after Protect", g.as(g.grant("n", time.Hour), "UPDATE "+part+" SET v = 3"), nil)
		refused(t, "a forged token, after Protect", g.run(outsider, attack...))
	})
}

// TestRowsMoveByTheCollationOfTheKey: the key tells partitions apart that the column's collation
// does not. MERGE hides such rows from the triggers after the statement, on servers without the fix
// of November 2026. The control is the same attack without the trigger of rows that move.
func TestRowsMoveByTheCollationOfTheKey(t *testing.T) {
	t.Parallel()
	g := newFixture(t)
	if g.serverVersion() < mergeSince {
		t.Skip("no MERGE")
	}
	g.sql("CREATE COLLATION pglock.ci (provider = icu, locale = 'und-u-ks-level2', deterministic = false)")
	for kind, ops := range map[string]string{"a collation": ` COLLATE "C"`, "an operator class": ` COLLATE "C" text_pattern_ops`} {
		table := g.table(kind, "(k text COLLATE pglock.ci, v int) PARTITION BY RANGE (k"+ops+")")
		g.sql(sprintf("CREATE TABLE pglock.%q PARTITION OF %s FOR VALUES FROM ('A') TO ('B'); CREATE TABLE pglock.%q PARTITION OF %[2]s DEFAULT", kind+" A", table, kind+" rest"))
		g.protect(table)
		older, newer := g.grant("older", time.Hour), g.grant("newer", time.Hour)
		want(t, kind+": a row", g.as(newer, "INSERT INTO "+table+" VALUES ('A', 0)"), nil)
		attack := "MERGE INTO " + table + " AS t USING (VALUES ('A')) AS s (k) ON t.k = s.k WHEN MATCHED THEN UPDATE SET k = 'a', v = 666"
		want(t, kind, g.as(older, attack), fencing.ErrStale)
		g.holds(table, "(A,0,%d)", newer.Token)
		g.sql("ALTER TABLE " + table + " DISABLE TRIGGER zz_pglock_fence_zmoved")
		if err := g.as(older, attack); err != nil {
			want(t, kind+": control: a server with the fix", err, fencing.ErrStale)
			t.Logf("%s: this server hides no row that moves, so the control shows nothing", kind)
		}
	}
}

// TestNewChildrenAreRefused by the next Protect, and listed.
func TestNewChildrenAreRefused(t *testing.T) {
	t.Parallel()
	g, table := newProtectedTable(t)
	g.sql("CREATE TABLE pglock.child () INHERITS (" + table + ")")
	want(t, "Protect", fencing.Protect(t.Context(), g.pool, table, fencing.WithSchema(g.schema)), fencing.ErrNoTable)
	if value[bool](g, "SELECT enabled FROM pglock.protected_tables") {
		t.Error("its children's rows count as protected")
	}
}
