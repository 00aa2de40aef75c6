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

//go:embed sql/pass.sql
var passFile string

//go:embed sql/enter.sql
var enterFile string

//go:embed sql/inspect.sql
var inspectFile string

// The statements, without the comments of their files.
var (
	lockSQL    = schema.Render(lockFile, schema.Default)
	lockOneSQL = renderLockOne()
	passSQL    = renderKey(passFile, 4)
	enterSQL   = renderKey(enterFile, 3)
	inspectSQL = schema.Render(inspectFile, schema.Default)
)

// lockForm selects one of the server's four lock functions.
type lockForm struct{ paired, shared bool }

// renderLockOne returns lock_one.sql for each form.
func renderLockOne() map[lockForm]string {
	rendered := map[lockForm]string{}
	for _, f := range []lockForm{{false, false}, {false, true}, {true, false}, {true, true}} {
		call := suffixed("pg_advisory_xact_lock", f.shared) + arguments(f.paired, 2)
		rendered[f] = strings.Replace(schema.Render(lockOneFile, schema.Default), "pg_advisory_xact_lock($2)", call, 1)
	}
	return rendered
}

// renderKey returns the file for a number and for a pair, whose parameters begin with $n.
func renderKey(file string, n int) map[bool]string {
	rendered, sql := map[bool]string{}, schema.Render(file, schema.Default)
	for _, paired := range []bool{false, true} {
		rendered[paired] = strings.ReplaceAll(sql, ":key", arguments(paired, n))
	}
	return rendered
}

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
		_, _, paired := c.keys[0].Int32s()
		return pgtx.Query{
			SQL:  lockOneSQL[lockForm{paired, c.shared}],
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

// withTurnstile returns pass.sql or enter.sql for the key: the turnstile, then flags, then the
// key are its arguments.
func (k Key) withTurnstile(rendered map[bool]string, flags ...bool) pgtx.Query {
	args := []any{k.Turnstile().id}
	for _, f := range flags {
		args = append(args, f)
	}
	return pgtx.Query{SQL: rendered[k.paired], Args: append(args, k.args()...)}
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
func (c *call) suffixed(function string) string { return suffixed(function, c.shared) }

func suffixed(function string, shared bool) string {
	if shared {
		return function + "_shared"
	}
	return function
}
