package fencing

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/pglock/pglock-go/internal/condition"
	"github.com/pglock/pglock-go/internal/schema"
)

// maxName is the longest a lock's name may be, in bytes.
const maxName = 512

// check returns an error that wraps ErrInvalidFence unless a grant can be such.
func (f Fence) check() error {
	if err := checkName(f.Name); err != nil {
		return err
	}
	if err := checkToken(f.Token); err != nil {
		return err
	}
	if err := schema.Validate(f.schemaName()); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalidFence, err)
	}
	return nil
}

func checkToken(t Token) error {
	if t <= 0 {
		return fmt.Errorf("%w: token %d, they begin at 1", ErrInvalidFence, t)
	}
	return nil
}

func checkName(name string) error {
	why := ""
	switch {
	case name == "":
		why = "it is empty"
	case len(name) > maxName:
		why = fmt.Sprintf("%d bytes, at most %d", len(name), maxName)
	case !utf8.ValidString(name) || strings.ContainsRune(name, 0):
		why = fmt.Sprintf("%q is not UTF-8 without NUL", name)
	}
	if why != "" {
		return fmt.Errorf("%w: %w: %s", ErrInvalidFence, condition.ErrInvalidName, why)
	}
	return nil
}

// MarshalText returns the fence as name@token, for instance "account:1@33"; one of
// another schema than "pglock" as name@token+schema, with the schema percent-encoded.
// ParseFence reads both. A fence that no grant can have is ErrInvalidFence.
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

// UnmarshalText is ParseFence. On an error f is left as it was.
func (f *Fence) UnmarshalText(text []byte) error {
	parsed, err := ParseFence(string(text))
	if err != nil {
		return err
	}
	*f = parsed
	return nil
}

// ParseFence reads the text of a fence: name@token or name@token+schema. The name may
// contain any of these signs: the last @ counts. The token is written in digits alone,
// without zeros in front, so that one fence has one text. Schema is empty if it is the
// default one. Anything else is an error that wraps ErrInvalidFence.
func ParseFence(text string) (Fence, error) {
	at := strings.LastIndexByte(text, '@')
	if at < 0 {
		return Fence{}, fmt.Errorf("%w: %q is not name@token", ErrInvalidFence, text)
	}
	digits, escaped, hasSchema := strings.Cut(text[at+1:], "+")
	token, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || strconv.FormatInt(token, 10) != digits {
		return Fence{}, fmt.Errorf("%w: %q has no token behind the last @", ErrInvalidFence, text)
	}
	f := Fence{Name: text[:at], Token: Token(token)}
	if hasSchema {
		s, err := url.QueryUnescape(escaped)
		if err != nil || url.QueryEscape(s) != escaped || s == "" || s == schema.Default {
			return Fence{}, fmt.Errorf("%w: %q has no schema behind the +", ErrInvalidFence, text)
		}
		f.Schema = s
	}
	if err := f.check(); err != nil {
		return Fence{}, err
	}
	return f, nil
}
