package rowlock

import (
	"strings"
	"time"
)

// LockOption configures ForUpdate and its like.
type LockOption interface{ applyLock(*config) error }

// StockOption configures Reserve and Restock.
type StockOption interface{ applyStock(*config) error }

// ClaimOption configures Claim.
type ClaimOption interface{ applyClaim(*config) error }

// WaitOption is one for all that may wait.
type WaitOption interface {
	LockOption
	StockOption
}

// RowOption is one for all that return rows.
type RowOption interface {
	LockOption
	ClaimOption
}

// Option is one for everything.
type Option interface {
	LockOption
	StockOption
	ClaimOption
}

type config struct {
	timeout      time.Duration // 0: as long as ctx
	noWait       bool
	skipLocked   bool
	allowMissing bool
	columns      []string
	conditions   []filter
	order        []ordering
}

type ordering struct {
	column     string
	descending bool
}

type option func(*config) error

func (o option) applyLock(c *config) error  { return o(c) }
func (o option) applyStock(c *config) error { return o(c) }
func (o option) applyClaim(c *config) error { return o(c) }

type waitOption func(*config) error

func (o waitOption) applyLock(c *config) error  { return o(c) }
func (o waitOption) applyStock(c *config) error { return o(c) }

type rowOption func(*config) error

func (o rowOption) applyLock(c *config) error  { return o(c) }
func (o rowOption) applyClaim(c *config) error { return o(c) }

type lockOption func(*config) error

func (o lockOption) applyLock(c *config) error { return o(c) }

type claimOption func(*config) error

func (o claimOption) applyClaim(c *config) error { return o(c) }

// check finds options that contradict each other.
func (c *config) check() error {
	switch {
	case c.noWait && c.skipLocked:
		return invalidOption("NoWait and SkipLocked exclude each other")
	case c.timeout > 0 && c.noWait:
		return invalidOption("NoWait and WithTimeout exclude each other")
	case c.timeout > 0 && c.skipLocked:
		return invalidOption("SkipLocked and WithTimeout exclude each other")
	}
	return nil
}

// WithTimeout bounds the waiting for all rows together, and for a lock on the table itself:
// when it is over the error is ErrNotAcquired and ErrTimeout. It counts in whole milliseconds,
// rounded up. Default: as long as the context lasts. A lock_timeout of the transaction's own that is
// shorter comes first, for each row.
func WithTimeout(d time.Duration) WaitOption {
	return waitOption(func(c *config) error {
		if d <= 0 {
			return invalidOption("a time-out of %v, it must be positive: use NoWait to ask once", d)
		}
		c.timeout = d
		return nil
	})
}

// NoWait refuses at once, with ErrNotAcquired, if a row is locked by somebody else, or the whole
// table for a millisecond. Default: wait.
func NoWait() WaitOption {
	return waitOption(func(c *config) error { c.noWait = true; return nil })
}

// SkipLocked leaves out rows that are locked by somebody else. Since they look like missing
// ones, no key is reported as missing. A lock on the whole table is waited for. Default: wait.
func SkipLocked() LockOption {
	return lockOption(func(c *config) error { c.skipLocked, c.allowMissing = true, true; return nil })
}

// AllowMissing returns the rows that there are. Default: a key without a row is a *MissingError.
func AllowMissing() LockOption {
	return lockOption(func(c *config) error { c.allowMissing = true; return nil })
}

// WithColumns reads these columns only, and leaves the other fields of the row type zero. They
// must have fields in it. Default: all fields.
func WithColumns(names ...string) RowOption {
	return rowOption(func(c *config) error {
		if len(names) == 0 {
			return invalidOption("no columns")
		}
		seen := map[string]bool{}
		for _, n := range names {
			if err := checkName("column", n); err != nil {
				return err
			}
			if seen[n] {
				return invalidOption("column %q comes twice", n)
			}
			seen[n] = true
		}
		c.columns = names
		return nil
	})
}

// Where leaves only the rows whose column compares so with the value: one tenant, one warehouse,
// one state. The value is passed as a parameter. Several conditions must all hold. If the key
// is unique only together with another column, fix that one with Equal.
func Where(column string, op Op, value any) Option {
	return option(func(c *config) error {
		added, err := newFilter(column, op, value)
		c.conditions = append(c.conditions, added)
		return err
	})
}

// Due leaves only the rows whose column, a timestamptz, is not later than the server's clock.
func Due(column string) ClaimOption {
	return claimOption(func(c *config) error {
		added := filter{column: column, op: LessOrEqual, due: true}
		c.conditions = append(c.conditions, added)
		return added.check()
	})
}

// OrderBy claims the rows with the smallest values of the column first. Given several times, the
// first decides. Last comes the key. Default: the key.
func OrderBy(column string) ClaimOption { return orderBy(column, false) }

// OrderByDescending is OrderBy with the largest values first, NULL before all.
func OrderByDescending(column string) ClaimOption { return orderBy(column, true) }

func orderBy(column string, descending bool) ClaimOption {
	return claimOption(func(c *config) error {
		c.order = append(c.order, ordering{column, descending})
		return checkName("column", column)
	})
}

// orderColumns are the columns that the order names.
func (c *config) orderColumns() (names []string) {
	for _, o := range c.order {
		names = append(names, o.column)
	}
	return names
}

// orderBy renders the order, with the key last.
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
