package leasetable

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/schema"
)

// TestEveryStatementPrepares has the server parse and plan each statement, in a
// schema whose name needs quoting or does not.
func TestEveryStatementPrepares(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	name := pgtest.Schema(t, pool)
	conn, err := pgx.Connect(t.Context(), pool.Config().ConnString())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	all := reflect.ValueOf(newStatements(name))
	for i := range all.NumField() {
		field := all.Type().Field(i).Name
		sql := all.Field(i).String()
		if sql == "" || strings.Contains(sql, "--") {
			t.Errorf("%s: rendered as %q", field, sql)
		}
		if _, err := conn.Prepare(t.Context(), fmt.Sprint("s", i), sql); err != nil {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// TestRenderQuotes: a schema's name can't break out of a statement.
func TestRenderQuotes(t *testing.T) {
	t.Parallel()
	got := schema.Render("-- a comment\nSELECT pglock.next_fencing_token() FROM pglock.t", `a"; DROP TABLE x; --`)
	if want := `SELECT "a""; DROP TABLE x; --".next_fencing_token() FROM "a""; DROP TABLE x; --".t`; got != want {
		t.Errorf("rendered %s", got)
	}
}
