package leasetable

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/leasetable/internal/store"
	"github.com/pglock/pglock-go/leasetable/internal/timing"
)

// Definition says what the locks whose names match a pattern are for. Of several patterns that match
// a name, the one with the most characters that are no wildcards counts.
type Definition struct {
	Pattern string        // of the whole name: * is any text, ? any character
	TTL     time.Duration // of the leases, unless a call has WithTTL; 0: the client's
	Team    string
	Purpose string
}

// Matches reports whether the name matches the pattern.
func (d Definition) Matches(name string) bool { return matches([]rune(d.Pattern), []rune(name)) }

// matches compares a name with a pattern. After a mismatch, the last * takes one character more.
func matches(pattern, name []rune) bool {
	p, n, star, taken := 0, 0, -1, 0
	for n < len(name) {
		switch {
		case p < len(pattern) && pattern[p] == '*':
			star, taken = p, n
			p++
		case p < len(pattern) && (pattern[p] == '?' || pattern[p] == name[n]):
			p++
			n++
		case star >= 0:
			taken++
			p, n = star+1, taken
		default:
			return false
		}
	}
	for p < len(pattern) && pattern[p] == '*' {
		p++
	}
	return p == len(pattern)
}

// DefinitionOf returns the definition of a name, and false if none of all matches.
func DefinitionOf(all []Definition, name string) (best Definition, found bool) {
	for _, d := range all {
		if d.Matches(name) && (!found || moreSpecific(d, best) < 0) {
			best, found = d, true
		}
	}
	return best, found
}

// moreSpecific sorts definitions: those with more characters that are no wildcards come first.
func moreSpecific(a, b Definition) int {
	literal := func(d Definition) int {
		return len(d.Pattern) - strings.Count(d.Pattern, "*") - strings.Count(d.Pattern, "?")
	}
	return cmp.Or(cmp.Compare(literal(b), literal(a)), cmp.Compare(a.Pattern, b.Pattern))
}

// Define stores a definition, or replaces that of the same pattern. Other clients see it within a
// minute; one that meets a name without a definition looks at once.
//
// The error wraps ErrInvalidName if the pattern is not 1 to 512 bytes of UTF-8 without NUL, and
// ErrInvalidOption if the TTL is out of the range of WithTTL, or the team or the purpose is longer
// than 512 bytes or has other characters. If the server does not answer, it wraps ErrUnavailable, and
// the definition may be stored. ctx bounds the call.
func (c *Client) Define(ctx context.Context, d Definition) error {
	if err := checkName(d.Pattern); err != nil {
		return err
	}
	doing := fmt.Sprintf("define %q", d.Pattern)
	if d.TTL != 0 && (d.TTL < timing.MinTTL || d.TTL > timing.MaxTTL) {
		return invalidOption("%s: TTL %v: out of range: must be 0, or from %v to %v", doing, d.TTL, timing.MinTTL, timing.MaxTTL)
	}
	for what, text := range map[string]string{"team": d.Team, "purpose": d.Purpose} {
		if len(text) > maxReason || !storable(text) {
			return invalidOption("%s: %s %.64q: must be at most %d bytes of UTF-8 without NUL", doing, what, text, maxReason)
		}
	}
	if err := c.beginCall(); err != nil {
		return err
	}
	defer c.endCall()
	return c.explainIn(ctx, doing, c.store.Define(ctx, store.Definition(d)))
}

// Undefine deletes the definition of a pattern. The error wraps ErrNotFound if there is none.
// Otherwise the errors are those of Define.
func (c *Client) Undefine(ctx context.Context, pattern string) error {
	if err := checkName(pattern); err != nil {
		return err
	}
	if err := c.beginCall(); err != nil {
		return err
	}
	defer c.endCall()
	found, err := c.store.Undefine(ctx, pattern)
	if err == nil && !found {
		return errs.Errorf("%w: no definition of %q", ErrNotFound, pattern)
	}
	return c.explainIn(ctx, fmt.Sprintf("undefine %q", pattern), err)
}

// Definitions returns all definitions, the most specific ones first. The error wraps ErrUnavailable
// if the server does not answer, or the error and cause of ctx, which bounds the call.
func (c *Client) Definitions(ctx context.Context) ([]Definition, error) {
	if err := c.beginCall(); err != nil {
		return nil, err
	}
	defer c.endCall()
	all, err := c.readDefinitions(ctx)
	return all, c.explainIn(ctx, "read the definitions", err)
}

func (c *Client) readDefinitions(ctx context.Context) ([]Definition, error) {
	rows, err := c.store.Definitions(ctx)
	if err != nil {
		return nil, err
	}
	all := make([]Definition, len(rows))
	for i, row := range rows {
		all[i] = Definition(row)
	}
	slices.SortFunc(all, moreSpecific)
	return all, nil
}

// Undefined says what happens when a name without a definition is acquired.
type Undefined int

// Values of WithUndefined: the answer to a name without a definition.
const (
	UndefinedAllowed Undefined = iota // nothing
	UndefinedWarns                    // the logger gets a warning, once for each name
	UndefinedFails                    // the acquire fails with an *UndefinedError
)

// WithUndefined says what happens when a name without a definition is acquired: see Client.Define.
// With UndefinedWarns or UndefinedFails, leases have the TTL of the definition of their name, unless
// the call has WithTTL. The client keeps the definitions: an acquire of a defined name sends no
// further statement. Default UndefinedAllowed: definitions have no effect.
func WithUndefined(u Undefined) Option {
	return clientOption(func(c *clientConfig) error {
		if u < UndefinedAllowed || u > UndefinedFails {
			return invalidOption("undefined names: %d: must be UndefinedAllowed, UndefinedWarns or UndefinedFails", u)
		}
		c.undefined = u
		return nil
	})
}

// UndefinedError is the error of an acquire of a name without a definition: see WithUndefined.
type UndefinedError struct{ Name string }

func (e *UndefinedError) Error() string {
	return fmt.Sprintf("%v: %q matches no definition: define it, or correct the name", ErrUndefined, e.Name)
}

// Unwrap makes errors.Is find ErrUndefined.
func (e *UndefinedError) Unwrap() error { return ErrUndefined }

// maxWarnedNames is the number of undefined names that a client remembers to have warned of.
const maxWarnedNames = 1000

// definitions is what a client keeps of the table.
type definitions struct {
	mu      sync.Mutex   // guards the fields below; no I/O under it
	all     []Definition // the most specific ones first
	readAt  time.Time
	reading bool // in the background
	warned  map[string]struct{}
}

// find returns the definition of name, and how old the list is.
func (d *definitions) find(name string) (def Definition, found bool, age time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	age = time.Since(d.readAt)
	for _, def := range d.all {
		if def.Matches(name) {
			return def, true, age
		}
	}
	return Definition{}, false, age
}

// set records a list that was read at that time.
func (d *definitions) set(all []Definition, readAt time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.all, d.readAt = all, readAt
}

// warnOnce reports whether to warn of name.
func (d *definitions) warnOnce(name string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, before := d.warned[name]; before || len(d.warned) >= maxWarnedNames {
		return false
	}
	if d.warned == nil {
		d.warned = map[string]struct{}{}
	}
	d.warned[name] = struct{}{}
	return true
}

// defined returns the options of an acquire of name, with those of its definition in front. It reads
// the table only for a name without a definition, and in the background when the list is old.
func (c *Client) defined(ctx context.Context, name string, opts []LeaseOption) ([]LeaseOption, error) {
	if c.cfg.undefined == UndefinedAllowed || name == store.PruneLock {
		return opts, nil
	}
	if err := c.beginCall(); err != nil {
		return nil, err
	}
	defer c.endCall()
	def, found, age := c.definitions.find(name)
	switch {
	case !found && age > timing.DefinitionsMinAge:
		readAt := time.Now()
		all, err := c.readDefinitions(ctx)
		if err != nil && c.cfg.undefined == UndefinedFails {
			return nil, c.explainIn(ctx, fmt.Sprintf("acquire %q: read the definitions", name), err)
		}
		if err == nil {
			c.definitions.set(all, readAt)
			def, found, _ = c.definitions.find(name)
		}
	case age > timing.DefinitionsMaxAge:
		c.refreshDefinitions()
	}
	switch {
	case found && def.TTL > 0:
		return append([]LeaseOption{WithTTL(def.TTL)}, opts...), nil
	case found:
		return opts, nil
	case c.cfg.undefined == UndefinedFails:
		return nil, &UndefinedError{Name: name}
	}
	if c.definitions.warnOnce(name) {
		c.cfg.logger.Warn("pglock: the name matches no definition", "name", name)
	}
	return opts, nil
}

// refreshDefinitions reads the definitions in the background, unless that is in progress. After a
// failure, the next acquire tries again. The caller is inside a counted call.
func (c *Client) refreshDefinitions() {
	d := &c.definitions
	d.mu.Lock()
	begin := !d.reading
	d.reading = true
	d.mu.Unlock()
	if !begin {
		return
	}
	c.background(timing.StatementBound, func(ctx context.Context) {
		readAt := time.Now()
		if all, err := c.readDefinitions(ctx); err == nil {
			d.set(all, readAt)
		}
		d.mu.Lock()
		d.reading = false
		d.mu.Unlock()
	})
}
