package fencing_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/schema"
)

// TestForgedSettingsAreRefused: anybody can set them. Statements verify what they say.
func TestForgedSettingsAreRefused(t *testing.T) {
	t.Parallel()
	g := newFixture(t)
	table := g.table("t", "(id int PRIMARY KEY, v int) PARTITION BY LIST (id)")
	g.sql("CREATE TABLE pglock.part PARTITION OF " + table + " DEFAULT")
	part := schema.Quote(g.schema) + ".part"
	g.open(part)
	g.protect(table)
	g.grant("n", time.Minute)
	f := g.grant("n", time.Minute)
	names := settings(g)
	forge := func(name string, token, last fencing.Token, keys ...string) []string {
		var all []string
		grants := sprintf(`{"%s": %d}`, name, token)
		if slices.Contains(keys, "locked") {
			grants += " " // as Bind has it
		}
		values := map[string]string{"grants": grants, "seen": grants, "token": sprintf("%d", last)}
		for _, key := range keys {
			if key != "locked" {
				all = append(all, sprintf("SELECT set_config('pg'||'%s', '%s', true)", strings.TrimPrefix(names[key], "pg"), values[key]))
			}
		}
		return all
	}
	for _, target := range []string{table, part} {
		insert := "INSERT INTO " + target + " VALUES (1)"
		for name, tc := range map[string]struct {
			set  []string
			want error
		}{
			"above the current":                  {forge("n", f.Token+1, f.Token+1, "grants", "token"), fencing.ErrStale},
			"below":                              {forge("n", f.Token-1, f.Token-1, "grants", "token"), fencing.ErrStale},
			"of a name that isn't there":         {forge("never", f.Token, f.Token, "grants", "token"), fencing.ErrStale},
			"as if locked":                       {forge("n", f.Token+1, f.Token+1, "grants", "token", "locked"), fencing.ErrStale},
			"as if verified":                     {forge("n", f.Token+1, f.Token+1, "grants", "token", "locked", "seen"), fencing.ErrStale},
			"another token beside a real grant":  {forge("n", f.Token, f.Token+1, "grants", "token"), fencing.ErrStale},
			"another token, as if all was right": {forge("n", f.Token, f.Token+1, "grants", "token", "locked", "seen"), fencing.ErrStale},
			"the token alone":                    {forge("n", f.Token, f.Token, "token"), fencing.ErrUnfenced},
			"what the holder would set":          {forge("n", f.Token, f.Token, "grants", "token"), nil},
		} {
			g.sql("SET session_replication_role = replica; DELETE FROM " + table + "; RESET session_replication_role")
			err := g.unbound(append(tc.set, insert)...)
			if !errors.Is(err, tc.want) {
				t.Errorf("%s into %s: %v, want %v", name, target, err, tc.want)
			}
			if got := g.dump(table); (got == "") != (tc.want != nil) {
				t.Errorf("%s: the table has %s", name, got)
			}
		}
	}
	// Who sets a real grant by hand holds it as if bound, also beside another one that is bound.
	other := g.grant("other", time.Minute)
	for what, also := range map[string][]string{"by itself": nil, "beside another": {sprintf("SELECT pglock.bind('other', %d)", other.Token)}} {
		g.sql("SET session_replication_role = replica; DELETE FROM " + table + "; RESET session_replication_role")
		tx := g.begin()
		for _, s := range append(append(forge("n", f.Token, f.Token, "grants", "token"), also...), "UPDATE "+table+" SET v = 9") {
			if _, err := tx.Exec(t.Context(), g.named(s)); err != nil {
				t.Fatal(err)
			}
		}
		if free := value[bool](g, "SELECT EXISTS (SELECT FROM pglock.distributed_locks WHERE name = 'n' FOR UPDATE SKIP LOCKED)"); free {
			t.Errorf("%s: a takeover could come between the write and its commit", what)
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := g.unbound(sprintf("SELECT set_config('pg'||'%s', 'junk', true)", strings.TrimPrefix(names["grants"], "pg")), "INSERT INTO "+table+" VALUES (5)"); err == nil {
		t.Error("junk passed")
	}
}

// settings finds the names of the settings in a transaction that has bound and written.
func settings(g fixture) map[string]string {
	g.t.Helper()
	var source string // without replacing "pglock." in what is looked for
	if err := g.pool.QueryRow(g.t.Context(), "SELECT string_agg(prosrc, ' ') FROM pg_proc WHERE pronamespace = $1::text::regnamespace", schema.Quote(g.schema)).Scan(&source); err != nil {
		g.t.Fatal(err)
	}
	names := map[string]string{}
	for _, word := range strings.FieldsFunc(source, func(r rune) bool { return r == '\'' }) {
		for _, key := range []string{"grants", "token"} {
			if strings.HasPrefix(word, "pglock."+key+"_") {
				names[key] = word
			}
		}
	}
	names["seen"] = strings.Replace(names["grants"], "grants", "seen", 1) + "_1"
	if len(names) != 3 {
		g.t.Fatalf("settings %v", names)
	}
	return names
}
