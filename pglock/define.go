package pglock

import (
	"context"

	"github.com/pglock/pglock-go/leasetable"
)

// Definition says what the locks whose names match a pattern are for: their team, their purpose, and
// the TTL of their leases. Of several patterns that match a name, the one with the most characters
// that are no wildcards counts. It is a [leasetable.Definition], with these fields, and a method
// Matches:
//
//	Pattern string        // of the whole name: * is any text, ? any character
//	TTL     time.Duration // of the leases, unless a call has WithTTL; 0: the client's
//	Team    string
//	Purpose string
type Definition = leasetable.Definition

// Define stores a definition, or replaces that of the same pattern. Services may call it at each
// start. Other clients see it within a minute. Definitions are shown by pglock ls and pglock show,
// and have no other effect without WithUndefined.
//
// The error wraps ErrInvalidName or ErrInvalidOption for a wrong definition, and ErrUnavailable if the
// server does not answer. ctx bounds the call. See leasetable.Client.Define.
func (c *Client) Define(ctx context.Context, d Definition) error { return c.leases.Define(ctx, d) }

// Undefine deletes the definition of a pattern. The error wraps ErrNotFound if there is none.
func (c *Client) Undefine(ctx context.Context, pattern string) error {
	return c.leases.Undefine(ctx, pattern)
}

// Definitions returns all definitions, the most specific ones first.
func (c *Client) Definitions(ctx context.Context) ([]Definition, error) {
	return c.leases.Definitions(ctx)
}

// DefinitionOf returns the definition of a name, and false if none of all matches.
func DefinitionOf(all []Definition, name string) (Definition, bool) {
	return leasetable.DefinitionOf(all, name)
}

// Undefined says what happens when a name without a definition is acquired.
type Undefined = leasetable.Undefined

// Values of WithUndefined: the answer to a name without a definition.
const (
	UndefinedAllowed = leasetable.UndefinedAllowed // nothing
	UndefinedWarns   = leasetable.UndefinedWarns   // the logger gets a warning, once for each name
	UndefinedFails   = leasetable.UndefinedFails   // the call fails with an *UndefinedError
)

// WithUndefined says what happens when a name without a definition is acquired. With UndefinedWarns or
// UndefinedFails, leases have the TTL of the definition of their name, unless the call has WithTTL. An
// acquire of a defined name costs no further statement. Default UndefinedAllowed: definitions have no
// effect.
func WithUndefined(u Undefined) Option { return leasetable.WithUndefined(u) }

// UndefinedError is the error of an acquire of a name without a definition. It matches ErrUndefined.
// It is a [leasetable.UndefinedError], with the field Name.
type UndefinedError = leasetable.UndefinedError
