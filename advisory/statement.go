package advisory

import (
	_ "embed"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/pglock/pglock-go/internal/schema"
)

//go:embed sql/lock.sql
var lockFile string

//go:embed sql/lock_one.sql
var lockOneFile string

//go:embed sql/keepalive.sql
var keepAliveFile string

//go:embed sql/inspect.sql
var inspectFile string

// The files without their comments.
var (
	lockSQL      = schema.Render(lockFile, schema.Default)
	lockOneSQL   = renderLockOne()
	keepAliveSQL = schema.Render(keepAliveFile, schema.Default)
	inspectSQL   = schema.Render(inspectFile, schema.Default)
)

// form is how an advisory lock function is called.
type form struct{ paired, shared bool }

// renderLockOne returns lock_one.sql for each form.
func renderLockOne() map[form]string {
	rendered := map[form]string{}
	for _, f := range []form{{false, false}, {false, true}, {true, false}, {true, true}} {
		call := suffixed("pg_advisory_xact_lock", f.shared) + arguments(f.paired, 2)
		rendered[f] = strings.Replace(schema.Render(lockOneFile, schema.Default), "pg_advisory_xact_lock($2)", call, 1)
	}
	return rendered
}

// statement returns what locks all keys of the call within bound, 0 for no bound, until the
// transaction ends. Its row has the transaction's isolation level in the second column.
func (c *call) statement(bound time.Duration) query {
	if len(c.keys) == 1 {
		q := c.keys[0].calling(c.suffixed("pg_advisory_xact_lock"))
		if bound == 0 {
			q.sql += ", current_setting('transaction_isolation')"
			return q
		}
		_, _, paired := c.keys[0].Int32s()
		return query{lockOneSQL[form{paired, c.shared}], append([]any{milliseconds(bound)}, q.args...)}
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
	return query{lockSQL, []any{milliseconds(bound), paired, ids, as, bs, c.shared}}
}

// milliseconds rounds up. No bound is the longest that the server knows, 24 days.
func milliseconds(d time.Duration) int64 {
	if d == 0 {
		return math.MaxInt32
	}
	return int64(min((d-1)/time.Millisecond+1, math.MaxInt32))
}

// calling returns the query that calls the function with the key.
func (k Key) calling(function string) query {
	if a, b, paired := k.Int32s(); paired {
		return query{"SELECT " + function + arguments(true, 1), []any{a, b}}
	}
	return query{"SELECT " + function + arguments(false, 1), []any{k.id}}
}

// arguments returns the parameters of a key, numbered from n.
func arguments(paired bool, n int) string {
	switch {
	case paired:
		return fmt.Sprintf("($%d::integer, $%d::integer)", n, n+1)
	case n == 1: // the way of every call
		return "($1::bigint)"
	}
	return fmt.Sprintf("($%d::bigint)", n)
}

// suffixed returns the function's name for the mode of the call.
func (c *call) suffixed(function string) string { return suffixed(function, c.shared) }

func suffixed(function string, shared bool) string {
	if shared {
		return function + "_shared"
	}
	return function
}
