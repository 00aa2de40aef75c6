package fencing

import (
	"fmt"

	"github.com/pglock/pglock-go/internal/schema"
)

// Token is the number of a grant. Tokens of a name grow strictly in the order of its
// grants, through restarts, pruning and failovers. No two grants of any names share
// one, and numbers are left out: do not count grants by them. Zero is no token.
type Token int64

// Fence names one grant of one lock: what a writer is checked against. It may be
// handed to another process that works on the same database; see ParseFence.
type Fence struct {
	Schema string // of the lock tables; empty means "pglock"
	Name   string // of the lock
	Token  Token  // of the grant
}

// String returns the fence as name@token, for people. MarshalText has the schema too.
func (f Fence) String() string { return fmt.Sprintf("%s@%d", f.Name, f.Token) }

// schemaName returns the schema, also where none is named.
func (f Fence) schemaName() string {
	if f.Schema == "" {
		return schema.Default
	}
	return f.Schema
}
