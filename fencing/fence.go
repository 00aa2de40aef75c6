package fencing

import (
	"cmp"
	"fmt"
	"net/url"
	"strconv"
	"strings"

	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/schema"
)

// Token is the fencing token of a grant. The tokens of a name grow strictly in the order of its
// grants, through restarts, pruning and failovers. No two grants share a token, even those of
// different names. Tokens begin at 1 and have gaps, so they do not count grants.
type Token int64

// Fence names one grant of one lock, against which writers are checked. It may be passed to another
// process that works on the same database; see ParseFence.
type Fence struct {
	Schema string // of the lock tables; empty means "pglock"
	Name   string // of the lock
	Token  Token  // of the grant
}

// String returns the fence as name@token, for messages and logs, while MarshalText includes the
// schema.
func (f Fence) String() string { return fmt.Sprintf("%s@%d", f.Name, f.Token) }

func (f Fence) schemaName() string { return cmp.Or(f.Schema, schema.Default) }

func (f Fence) check() error {
	if err := checkGrant(f.Name, f.Token); err != nil {
		return err
	}
	if err := schema.Validate(f.schemaName()); err != nil {
		return errs.Errorf("%w: %w", ErrInvalidFence, err)
	}
	return nil
}

func checkGrant(name string, token Token) error {
	if err := errs.CheckName(name); err != nil {
		return errs.Errorf("%w: %w", ErrInvalidFence, err)
	}
	if token <= 0 {
		return errs.Errorf("%w: token %d: must be 1 or more", ErrInvalidFence, token)
	}
	return nil
}

// MarshalText returns the fence as name@token, for instance "account:1@33". If the schema is not
// "pglock", it returns name@token+schema with the schema percent-encoded, and ParseFence reads
// both. If no grant can have the fence, the error wraps ErrInvalidFence.
func (f Fence) MarshalText() ([]byte, error) {
	if err := f.check(); err != nil {
		return nil, err
	}
	text := f.String()
	if s := f.schemaName(); s != schema.Default {
		text += "+" + url.QueryEscape(s)
	}
	return []byte(text), nil
}

// UnmarshalText parses the text as ParseFence does, and leaves f unchanged on an error.
func (f *Fence) UnmarshalText(text []byte) error {
	parsed, err := ParseFence(string(text))
	if err == nil {
		*f = parsed
	}
	return err
}

// ParseFence parses a fence of the form name@token or name@token+schema. The name may contain @ and
// +: the last @ separates it from the token. The token has digits only and no leading zeros, so
// that a fence has one text. The result's Schema is empty for the default schema. For any other
// text the error wraps ErrInvalidFence.
func ParseFence(text string) (Fence, error) {
	at := strings.LastIndexByte(text, '@')
	if at < 0 {
		return Fence{}, errs.Errorf("%w: %q: must be name@token", ErrInvalidFence, text)
	}
	digits, escaped, hasSchema := strings.Cut(text[at+1:], "+")
	token, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || strconv.FormatInt(token, 10) != digits {
		return Fence{}, errs.Errorf("%w: %q: no token after the last @", ErrInvalidFence, text)
	}
	f := Fence{Name: text[:at], Token: Token(token)}
	if hasSchema {
		s, err := url.QueryUnescape(escaped)
		if err != nil || url.QueryEscape(s) != escaped || s == "" || s == schema.Default {
			return Fence{}, errs.Errorf("%w: %q: no schema after the +", ErrInvalidFence, text)
		}
		f.Schema = s
	}
	if err := f.check(); err != nil {
		return Fence{}, err
	}
	return f, nil
}
