package fencing_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/schema"
)

// TestRenamed: a renamed table stays protected. If a column that the triggers use is renamed or
// dropped, writes fail until the table is protected again. Unprotect finds the added column by its
// new name.
func TestRenamed(t *testing.T) {
	t.Parallel()
	g := newFixture(t)
	early, late := g.grant("n1", time.Minute), g.grant("n1", time.Minute)
	in := fencing.WithSchema(g.schema)
	q := schema.Quote(g.schema) + "."
	table := g.table("t", columns)
	g.protect(table, fencing.NamedBy("n{id}"))
	g.sql("ALTER TABLE " + table + " RENAME TO renamed")
	table = q + "renamed"
	want(t, "a renamed table", g.as(late, "INSERT INTO "+table+" VALUES (1, 0)"), nil)
	want(t, "without a grant", g.unbound("UPDATE "+table+" SET v = 1"), fencing.ErrUnfenced)
	want(t, "with an ended one", fencing.Bind(t.Context(), g.begin(), early), fencing.ErrStale)

	for name, change := range map[string][2]string{
		"token":    {"RENAME fence_token TO stamp", "RENAME stamp TO fence_token"},
		"the lock": {"RENAME id TO number", "RENAME number TO id"},
	} {
		g.sql("ALTER TABLE " + table + " " + change[0])
		for _, write := range []string{"UPDATE %s SET v = 2", "DELETE FROM %s"} {
			wantCode(t, name+" renamed: "+write, g.as(g.grant("n2", time.Minute), sprintf(write, table)), "42703", "PGL03") // another lock's
			wantCode(t, name+" renamed, without a grant: "+write, g.unbound(sprintf(write, table)), "42703", "PGL02")
		}
		g.sql("ALTER TABLE " + table + " " + change[1])
		want(t, name+" renamed back", g.as(late, "UPDATE "+table+" SET v = 3"), nil)
	}
	g.sql("ALTER TABLE " + table + " RENAME fence_token TO stamp")
	g.sql("ALTER TABLE " + table + " ADD fence_token bigint DEFAULT 5") // the user's own
	ok(t, fencing.Unprotect(t.Context(), g.pool, table, in))
	want(t, "a write after Unprotect", g.unbound("UPDATE "+table+" SET v = 4"), nil)
	g.holds(table, "(1,4,5)")
	g.sql("ALTER TABLE " + table + " DROP fence_token")
	before := g.definition(table)
	g.protect(table)
	g.sql("ALTER TABLE " + table + " ALTER fence_token DROP DEFAULT")
	ok(t, fencing.Unprotect(t.Context(), g.pool, table, in))
	if after := g.definition(table); after != before {
		t.Errorf("Unprotect left %s, before Protect it was %s", after, before)
	}
	// A column that the triggers use can't be dropped.
	g.protect(table)
	if _, err := g.pool.Exec(t.Context(), "ALTER TABLE "+table+" DROP fence_token"); err == nil {
		t.Error("the column was dropped")
	}
}

// TestAReadOnlyTransactionCannotBeGuarded, and the error says so.
func TestAReadOnlyTransactionCannotBeGuarded(t *testing.T) {
	t.Parallel()
	g := newFixture(t)
	wantCode(t, "Check", fencing.Check(t.Context(), g.beginOn(g.writer, pgx.TxOptions{AccessMode: pgx.ReadOnly}), g.grant("n", time.Minute)), "25006")
}
