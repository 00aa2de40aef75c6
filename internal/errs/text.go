package errs

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode"
)

// prefixes begin the errors of this module's packages.
var prefixes = []string{
	"pglock: ", "advisory: ", "fencing: ", "fencehttp: ", "migrations: ", "runner: ", "gooselock: ",
	"schedule: ", "rowlock: ", "sqltx: ", "once: ", "oncehttp: ", "leader: ", "pglocktest: ",
}

// Text returns the text of err on one line.
func Text(err error) string { return OneLine(err.Error()) }

// Reason is Text without the name of a package at the beginning, for use inside of another text.
func Reason(err error) string {
	text := Text(err)
	for _, p := range prefixes {
		if rest, ok := strings.CutPrefix(text, p); ok {
			return rest
		}
	}
	return text
}

// OneLine returns s on one line, so that an error is one line of a log. Lines are joined with
// semicolons, or with a space after a colon, and other control characters become spaces.
func OneLine(s string) string {
	if strings.IndexFunc(s, unicode.IsControl) < 0 {
		return s
	}
	s = strings.TrimSpace(strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\r':
			return '\n'
		case unicode.IsControl(r):
			return ' '
		}
		return r
	}, s))
	return strings.ReplaceAll(lineEnd.ReplaceAllString(s, "; "), ":; ", ": ")
}

var lineEnd = regexp.MustCompile(`\s*\n\s*`)

// composed is an error whose text is fixed, and which wraps others.
type composed struct {
	text string
	errs []error
}

func (c *composed) Error() string   { return c.text }
func (c *composed) Unwrap() []error { return c.errs }

// bare is an error whose text does not begin with the name of a package.
type bare struct{ error }

func (b bare) Error() string { return Reason(b.error) }
func (b bare) Unwrap() error { return b.error }

// Errorf is fmt.Errorf for errors that are written to logs: the text is one line, and only its
// beginning may name a package of this module. An argument that is an error loses its package's
// name, unless the format begins with its %w.
func Errorf(format string, args ...any) error {
	args = slices.Clone(args)
	for i, arg := range args {
		if err, ok := arg.(error); ok && (i > 0 || !strings.HasPrefix(format, "%w")) {
			args[i] = bare{err}
		}
	}
	err := fmt.Errorf(format, args...)
	return &composed{OneLine(err.Error()), []error{err}}
}

// Join joins errors with semicolons, the cause first. It drops nil, and what an earlier error
// wraps. It returns a single error unchanged, and nil if none is left.
func Join(all ...error) error {
	var kept []error
	var texts []string
	named := false
	for _, err := range all {
		if err == nil || errors.Is(errors.Join(kept...), err) {
			continue
		}
		text, rest := Text(err), Reason(err)
		if named {
			text = rest
		}
		named = named || rest != text
		kept, texts = append(kept, err), append(texts, text)
	}
	switch len(kept) {
	case 0:
		return nil
	case 1:
		return kept[0]
	}
	return &composed{strings.Join(texts, "; "), kept}
}
