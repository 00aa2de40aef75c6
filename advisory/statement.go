package advisory

import (
	_ "embed"
	"fmt"
	"strings"
	"time"

	"github.com/pglock/pglock-go/internal/pgtx"
	"github.com/pglock/pglock-go/internal/schema"
)

//go:embed sql/lock.sql
var lockFile string

//go:embed sql/lock_one.sql
var lockOneFile string

//go:embed sql/acquire.sql
var acquireFile string

//go:embed sql/inspect.sql
var inspectFile string

// The statements, without the comments of their files.
var (
	lockSQL    = schema.Render(lockFile, schema.Default)
	lockOneSQL = schema.Render(lockOneFile, schema.Default)
	acquireSQL = schema.Render(acquireFile, schema.Default)
	inspectSQL = schema.Render(inspectFile, schema.Default)
)

// statement returns the query that locks all keys of the call until the transaction ends, and
// waits for lockTimeout at most; 0 is no bound. The second column of its row is the transaction's
// isolation level.
func (c *call) statement(lockTimeout time.Duration) pgtx.Query {
	if len(c.keys) == 1 {
		q := c.keys[0].calling(c.suffixed("pg_advisory_xact_lock"))
		if lockTimeout == 0 {
			q.SQL += ", current_setting('transaction_isolation')"
			return q
		}
		call := c.suffixed("pg_advisory_xact_lock") + arguments(c.keys[0].paired, 2)
		return pgtx.Query{
			SQL:  strings.Replace(lockOneSQL, "pg_advisory_xact_lock($2)", call, 1),
			Args: append([]any{pgtx.Milliseconds(lockTimeout)}, q.Args...),
		}
	}
	paired, ids := make([]bool, len(c.keys)), make([]int64, len(c.keys))
	as, bs := make([]int32, len(c.keys)), make([]int32, len(c.keys))
	for i, k := range c.keys {
		if a, b, ok := k.Int32s(); ok {
			paired[i], as[i], bs[i] = true, a, b
		} else {
			ids[i] = k.id
		}
	}
	return pgtx.Query{SQL: lockSQL, Args: []any{pgtx.Milliseconds(lockTimeout), paired, ids, as, bs, c.shared}}
}

// args returns the key as arguments of a lock function.
func (k Key) args() []any {
	if a, b, paired := k.Int32s(); paired {
		return []any{a, b}
	}
	return []any{k.id}
}

// calling returns the query that calls the lock function with the key.
func (k Key) calling(function string) pgtx.Query {
	return pgtx.Query{SQL: "SELECT " + function + arguments(k.paired, 1), Args: k.args()}
}

// arguments returns the parameters of a key, numbered from n.
func arguments(paired bool, n int) string {
	switch {
	case paired:
		return fmt.Sprintf("($%d::integer, $%d::integer)", n, n+1)
	case n == 1: // without Sprintf, since most calls take this path
		return "($1::bigint)"
	}
	return fmt.Sprintf("($%d::bigint)", n)
}

// suffixed returns the name of the lock function for the call's mode.
func (c *call) suffixed(function string) string {
	if c.shared {
		return function + "_shared"
	}
	return function
}
