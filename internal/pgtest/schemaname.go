package pgtest

import (
	"testing"

	"github.com/jackc/pgx/v5"
)

// SchemaName returns the name of a schema that doesn't exist yet on the shared server. On cleanup the schema is
// dropped, with all in it, if it was created. Some of the names need quoting; any that fits PostgreSQL must do.
func SchemaName(tb testing.TB) string {
	tb.Helper()
	url := URL(tb)
	name := oddName()
	tb.Cleanup(func() {
		if err := execute(url, "DROP SCHEMA IF EXISTS "+pgx.Identifier{name}.Sanitize()+" CASCADE"); err != nil {
			tb.Errorf("pgtest: drop schema %q: %v", name, err)
		}
	})
	return name
}
