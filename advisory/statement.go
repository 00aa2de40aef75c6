package advisory

import (
	"embed"
	"strings"
	"time"

	"github.com/pglock/pglock-go/internal/pgtx"
	"github.com/pglock/pglock-go/internal/schema"
)

//go:embed sql
var files embed.FS

// statements are those in files, which name no schema.
var statements = schema.Statements(files, schema.Default)

// statement returns the query that locks all keys of the call until the transaction ends, and
// waits for lockTimeout at most; 0 is no bound. The second column of its row is the transaction's
// isolation level.
func (c *call) statement(lockTimeout time.Duration) pgtx.Query {
	if len(c.keys) > 1 {
		ids := make([]int64, len(c.keys))
		for i, k := range c.keys {
			ids[i] = k.id
		}
		return pgtx.Query{SQL: statements["lock"], Args: []any{pgtx.Milliseconds(lockTimeout), ids, c.shared}}
	}
	function := c.suffixed("pg_advisory_xact_lock")
	if lockTimeout == 0 {
		q := c.keys[0].calling(function)
		q.SQL += ", current_setting('transaction_isolation')"
		return q
	}
	return pgtx.Query{
		SQL:  strings.Replace(statements["lock_one"], "pg_advisory_xact_lock(", function+"(", 1),
		Args: []any{pgtx.Milliseconds(lockTimeout), c.keys[0].id},
	}
}

// calling returns the query that calls the lock function with the key.
func (k Key) calling(function string) pgtx.Query {
	return pgtx.Query{SQL: "SELECT " + function + "($1::bigint)", Args: []any{k.id}}
}

// suffixed returns the name of the lock function for the call's mode.
func (c *call) suffixed(function string) string {
	if c.shared {
		return function + "_shared"
	}
	return function
}
