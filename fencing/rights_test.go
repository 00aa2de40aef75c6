package fencing_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/schema"
)

// TestWithoutRights: each missing right has its own error, and the transaction locks nothing.
func TestWithoutRights(t *testing.T) {
	t.Parallel()
	g := newFixture(t)
	f := g.grant("n", time.Minute)
	role := schema.Quote(pgtest.RoleOf(g.writer))
	in := fencing.WithSchema(g.schema)
	calls := map[string]func(tx pgx.Tx) error{
		"Check":        func(tx pgx.Tx) error { return fencing.Check(t.Context(), tx, f) },
		"Bind":         func(tx pgx.Tx) error { return fencing.Bind(t.Context(), tx, f) },
		"Batch":        func(tx pgx.Tx) error { return fencing.Batch(t.Context(), tx, f, batch("SELECT 1")) },
		"Advance":      func(tx pgx.Tx) error { return fencing.Advance(t.Context(), tx, "r", 1, in) },
		"TableChecker": func(tx pgx.Tx) error { return fencing.NewTableChecker(tx, in).Accept(t.Context(), "r", 1) },
	}
	try := func(call func(pgx.Tx) error) error {
		tx := g.begin()
		defer func() { _ = tx.Rollback(context.Background()) }()
		return call(tx)
	}
	for name, call := range calls {
		want(t, "control: "+name+" with rights", try(call), nil)
	}
	for _, revoke := range []string{
		"REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA " + schema.Quote(g.schema) + " FROM " + role,
		"REVOKE USAGE ON SCHEMA " + schema.Quote(g.schema) + " FROM " + role,
	} {
		g.sql(revoke)
		for name, call := range calls {
			err := try(call)
			want(t, name+" after "+revoke, err, fencing.ErrPrivilege)
			if errors.Is(err, fencing.ErrStale) || errors.Is(err, fencing.ErrSchemaMissing) {
				t.Errorf("%s is two things: %v", name, err)
			}
		}
	}
	// A role that may write the table, and has no right on the lock schema, gets ErrUnfenced.
	elsewhere := g.elsewhere("t")
	want(t, "a write without any right on locks", g.unbound("INSERT INTO "+elsewhere+" VALUES (1)"), fencing.ErrUnfenced)
	if n := value[int](g, "SELECT count(*) FROM pglock.fencing_high_water"); n != 0 {
		t.Errorf("%d marks were raised", n)
	}
}

// TestOwnerProtects its table without being a superuser, with exactly the rights that doc.go lists.
func TestOwnerProtects(t *testing.T) {
	t.Parallel()
	g := newFixture(t)
	owner := g.role()
	role := schema.Quote(pgtest.RoleOf(owner))
	in := fencing.WithSchema(g.schema)
	table := g.elsewhereUnprotected("t")
	g.sql("ALTER TABLE " + table + " OWNER TO " + role)
	before := g.definition(table)
	for _, right := range []string{
		"GRANT USAGE ON SCHEMA " + schema.Quote(g.schema) + " TO " + role,
		"SELECT pglock.grant_owner(" + literal(pgtest.RoleOf(owner)) + ")",
	} {
		want(t, "before "+right, fencing.Protect(t.Context(), owner, table, in), fencing.ErrPrivilege)
		if after := g.definition(table); after != before {
			t.Fatalf("a refusal left %s, at first it was %s", after, before)
		}
		g.sql(right)
	}
	want(t, "Protect", fencing.Protect(t.Context(), owner, table, in), nil)
	f := g.grant("n", time.Minute)
	want(t, "a writer's write", g.as(f, "INSERT INTO "+table+" VALUES (1)"), nil)
	want(t, "one without a grant", g.unbound("INSERT INTO "+table+" VALUES (2)"), fencing.ErrUnfenced)
	want(t, "Unprotect", fencing.Unprotect(t.Context(), owner, table, in), nil)
	if after := g.definition(table); after != before {
		t.Errorf("Unprotect left %s, at first it was %s", after, before)
	}
}
