package rowlock

import (
	"strings"
	"time"
)

// Option configures every call. Reserve and Restock have no other options.
type Option interface {
	LockOption
	ClaimOption
	applyStock(*config) error
}

// LockOption configures ForUpdate, ForNoKeyUpdate, ForShare and ForKeyShare. Every Option is one.
type LockOption interface{ applyLock(*config) error }

// ClaimOption configures Claim. Every Option is one.
type ClaimOption interface{ applyClaim(*config) error }

type config struct {
	timeout      time.Duration // 0: as long as ctx
	noWait       bool
	skipLocked   bool
	allowMissing bool
	conditions   []filter
	order        []ordering
}

type ordering struct {
	column     string
	descending bool
}

type option func(*config) error

func (o option) applyLock(c *config) error  { return o(c) }
func (o option) applyClaim(c *config) error { return o(c) }
func (o option) applyStock(c *config) error { return o(c) }

type lockOption func(*config) error

func (o lockOption) applyLock(c *config) error { return o(c) }

type claimOption func(*config) error

func (o claimOption) applyClaim(c *config) error { return o(c) }

// check refuses options that contradict each other.
func (c *config) check() error {
	switch {
	case c.noWait && c.skipLocked:
		return invalidOption("NoWait and SkipLocked are mutually exclusive")
	case c.timeout > 0 && c.noWait:
		return invalidOption("NoWait and WithTimeout are mutually exclusive")
	case c.timeout > 0 && c.skipLocked:
		return invalidOption("SkipLocked and WithTimeout are mutually exclusive")
	}
	return nil
}

// WithTimeout bounds the wait for all rows together, and for a lock on the whole table. When the
// time has passed, the call fails with ErrNotAcquired and ErrTimeout. It counts in whole
// milliseconds, rounded up. A shorter lock_timeout of the transaction takes precedence, for each
// row. Default: as long as the context lasts.
func WithTimeout(d time.Duration) Option {
	return option(func(c *config) error {
		if d <= 0 {
			return invalidOption("timeout %v: must be positive: use NoWait for a single attempt", d)
		}
		c.timeout = d
		return nil
	})
}

// NoWait makes the call fail at once, with ErrNotAcquired, if another transaction holds a row, or
// holds the whole table for a millisecond. Default: wait.
func NoWait() Option {
	return option(func(c *config) error { c.noWait = true; return nil })
}

// SkipLocked leaves out rows that other transactions hold. They look like missing rows, so that
// no key is reported as missing. The call does wait for a lock on the whole table. Default: wait.
func SkipLocked() LockOption {
	return lockOption(func(c *config) error { c.skipLocked, c.allowMissing = true, true; return nil })
}

// AllowMissing returns the rows that exist. Default: a key without a row is a *MissingError.
func AllowMissing() LockOption {
	return lockOption(func(c *config) error { c.allowMissing = true; return nil })
}

// Where selects only the rows whose column compares to value as op says: one tenant, one
// warehouse, one state. The value is sent as a parameter. Several conditions must all hold. If
// the key is unique only together with another column, select one value of that with Equal.
func Where(column string, op Op, value any) Option {
	return option(func(c *config) error {
		added, err := newFilter(column, op, value)
		c.conditions = append(c.conditions, added)
		return err
	})
}

// Due selects only the rows whose column, a timestamptz, is not later than the server's clock.
func Due(column string) ClaimOption {
	return claimOption(func(c *config) error {
		added := filter{column: column, op: LessOrEqual, due: true}
		c.conditions = append(c.conditions, added)
		return added.check()
	})
}

// OrderBy claims the rows with the smallest values of the column first. Several OrderBy apply in
// the order given, and then the key. Default: the key.
func OrderBy(column string) ClaimOption { return orderBy(column, false) }

// OrderByDescending is OrderBy with the largest values first, and NULL before them.
func OrderByDescending(column string) ClaimOption { return orderBy(column, true) }

func orderBy(column string, descending bool) ClaimOption {
	return claimOption(func(c *config) error {
		c.order = append(c.order, ordering{column, descending})
		return checkName("column", column)
	})
}

// orderColumns returns the columns that the order names.
func (c *config) orderColumns() (names []string) {
	for _, o := range c.order {
		names = append(names, o.column)
	}
	return names
}

// orderBy renders the ORDER BY list, with the key last.
func (c *config) orderBy(key string) string {
	var b strings.Builder
	for _, o := range c.order {
		b.WriteString("t." + quote(o.column))
		if o.descending {
			b.WriteString(" DESC")
		}
		b.WriteString(", ")
	}
	return b.String() + "t." + quote(key)
}
