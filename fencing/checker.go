package fencing

import (
	"cmp"
	"context"
	"sync"

	"github.com/pglock/pglock-go/internal/errs"
)

// Checker decides about writes outside the database: to a file store, a queue, another service. It
// keeps the highest token of each resource.
//
// A Checker does not know the locks: it accepts any token that is the highest so far. So a holder
// that was paused passes as long as no holder with a newer token has come before it.
type Checker interface {
	// Accept returns nil if the token is not older than any that it has accepted for the resource,
	// and a *StaleError otherwise. So the accepted tokens of a resource never go down. A resource
	// is 1 to 512 bytes of UTF-8 without NUL, and tokens begin at 1: other values are
	// ErrInvalidFence. ErrFull means that the resource is new and the Checker keeps no more. After
	// any other error nothing was decided, so refuse the write. Calls may be concurrent.
	Accept(ctx context.Context, resource string, token Token) error
}

// MemoryChecker is a Checker for a single process. It forgets its tokens when the process ends, and
// its zero value is ready to use.
//
// It can't forget a resource and still refuse older tokens, and clients may invent names. So it
// keeps a limited number of resources. When it is full, it refuses new resources with ErrFull and
// continues to serve the others. A server that does not trust its clients should name the resources
// itself: see fencehttp.WithResource.
type MemoryChecker struct {
	// Limit is the number of resources, which must not change after the first Accept. Zero means
	// 1,000,000, each of which takes about 100 bytes and its name, and less than zero means none.
	Limit int

	mu      sync.Mutex
	highest map[string]Token // guarded by mu
}

// Accept implements Checker without blocking, and ignores its context.
func (c *MemoryChecker) Accept(_ context.Context, resource string, token Token) error {
	if err := checkGrant(resource, token); err != nil {
		return err
	}
	const defaultLimit = 1_000_000
	limit := cmp.Or(c.Limit, defaultLimit)
	c.mu.Lock()
	defer c.mu.Unlock()
	highest, known := c.highest[resource]
	switch {
	case token < highest:
		return &StaleError{Resource: resource, Token: token, Current: highest}
	case !known && len(c.highest) >= limit:
		return errs.Errorf("%w: accept %q: it is new, and %d are kept: raise Limit", ErrFull, resource, len(c.highest))
	}
	if c.highest == nil {
		c.highest = map[string]Token{}
	}
	c.highest[resource] = token
	return nil
}

type tableChecker struct {
	db   DB
	opts []SchemaOption
}

// NewTableChecker returns a Checker for any number of processes. It keeps its marks in the database
// of db, usually a pool, as Advance does, and returns ErrFull when Advance does. If db is a
// transaction, its marks become visible when it commits. WithSchema sets the schema of the marks.
// NewTableChecker does not contact the database; each Accept takes one round trip.
func NewTableChecker(db DB, opts ...SchemaOption) Checker { return tableChecker{db, opts} }

func (c tableChecker) Accept(ctx context.Context, resource string, token Token) error {
	return advance(ctx, c.db, resource, token, c.opts)
}
