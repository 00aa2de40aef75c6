package fencing

import (
	"context"
	"sync"
)

// Checker decides about writes outside the database: to a file store, a queue, another
// service. It keeps the highest token that each resource has seen.
//
// It can't see the locks, so it accepts whoever comes with the highest token so far. A
// holder that was paused gets in as long as nobody with a newer token was there before.
type Checker interface {
	// Accept returns nil if the token is not older than any that was accepted for the
	// resource before, and a *StaleError otherwise. What it accepts is therefore
	// monotone for each resource. A resource has 1 to 512 bytes of UTF-8 without NUL,
	// and tokens begin at 1: anything else is ErrInvalidFence. It may be called
	// concurrently. Any other error means that nothing was decided: refuse.
	Accept(ctx context.Context, resource string, token Token) error
}

// MemoryChecker is a Checker for a single process. It forgets when the process ends, and
// it keeps a few dozen bytes for each resource. Its zero value is ready to use.
type MemoryChecker struct {
	mu      sync.Mutex
	highest map[string]Token
}

// Accept implements Checker. It does not wait, and ignores its context.
func (c *MemoryChecker) Accept(_ context.Context, resource string, token Token) error {
	if err := checkName(resource); err != nil {
		return err
	}
	if err := checkToken(token); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if highest := c.highest[resource]; token < highest {
		return &StaleError{Resource: resource, Token: token, Current: highest}
	}
	if c.highest == nil {
		c.highest = map[string]Token{}
	}
	c.highest[resource] = token
	return nil
}

// TableChecker is a Checker for any number of processes: it keeps its marks in the
// database, as Advance does.
type TableChecker struct {
	db   DB
	opts []SchemaOption
}

// NewTableChecker returns a Checker on the database that db leads to, as a rule a pool;
// in a transaction its marks become known when that commits. It connects to nothing yet.
// WithSchema names the schema of the marks.
func NewTableChecker(db DB, opts ...SchemaOption) *TableChecker {
	return &TableChecker{db, opts}
}

// Accept implements Checker. It takes one round trip, which ctx bounds.
func (c *TableChecker) Accept(ctx context.Context, resource string, token Token) error {
	return advance(ctx, c.db, resource, token, c.opts)
}
