package fencing

import "fmt"

// Token is the number of a grant. Tokens of a name grow strictly in the order of its
// grants, through restarts, pruning and failovers. No two grants of any names share
// one, and numbers are left out: do not count grants by them. Zero is no token.
type Token int64

// Fence names one grant of one lock: what a writer is checked against. It may be
// handed to another process that works on the same database.
type Fence struct {
	Schema string // of the lock tables; empty means "pglock"
	Name   string // of the lock
	Token  Token  // of the grant
}

// String returns the fence as name@token.
func (f Fence) String() string { return fmt.Sprintf("%s@%d", f.Name, f.Token) }
