package errs

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
)

// prefixes begin the errors of this module's packages.
var prefixes = []string{
	"pglock: ", "advisory: ", "fencing: ", "fencehttp: ", "migrations: ", "runner: ", "gooselock: ",
	"schedule: ", "rowlock: ", "sqltx: ", "once: ", "oncehttp: ", "leader: ",
}

// Text returns the text of err on one line.
func Text(err error) string { return OneLine(err.Error()) }

// Reason is Text without the name of a package at the beginning, for use inside of another text.
func Reason(err error) string { return withoutPrefix(Text(err)) }

func withoutPrefix(text string) string {
	for _, p := range prefixes {
		if rest, ok := strings.CutPrefix(text, p); ok {
			return rest
		}
	}
	return text
}

// OneLine returns s on one line, so that an error is one line of a log. Lines are joined with
// semicolons, or with a space after a colon. Other control characters become spaces.
func OneLine(s string) string {
	if strings.IndexFunc(s, unicode.IsControl) < 0 {
		return s
	}
	var b strings.Builder
	for line := range strings.FieldsFuncSeq(s, func(r rune) bool { return r == '\n' || r == '\r' }) {
		line = strings.TrimSpace(strings.Map(func(r rune) rune {
			if unicode.IsControl(r) {
				return ' '
			}
			return r
		}, line))
		switch {
		case line == "":
			continue
		case b.Len() == 0:
		case strings.HasSuffix(b.String(), ":"):
			b.WriteByte(' ')
		default:
			b.WriteString("; ")
		}
		b.WriteString(line)
	}
	return b.String()
}

// composed is an error whose text is fixed. It wraps others.
type composed struct {
	text string
	errs []error
}

func (c *composed) Error() string   { return c.text }
func (c *composed) Unwrap() []error { return c.errs }

// Errorf is fmt.Errorf for errors that are written to logs: the text is one line, and only its
// beginning may name a package of this module. An error for %w loses its package's name unless it
// comes first.
func Errorf(format string, args ...any) error {
	c := &composed{}
	texts := make([]any, len(args))
	verbs := verbsOf(format)
	for i, arg := range args {
		texts[i] = arg
		err, ok := arg.(error)
		if !ok || i >= len(verbs) || verbs[i] != 'w' {
			continue
		}
		c.errs = append(c.errs, err)
		if texts[i] = Reason(err); i == 0 && strings.HasPrefix(format, "%w") {
			texts[i] = Text(err)
		}
	}
	c.text = OneLine(fmt.Sprintf(strings.ReplaceAll(format, "%w", "%v"), texts...))
	return c
}

// verbsOf returns the verbs of a format that consume an argument each.
func verbsOf(format string) (verbs []rune) {
	inside := false
	for _, r := range format {
		switch {
		case !inside:
			inside = r == '%'
		case r == '%':
			inside = false
		case unicode.IsLetter(r):
			verbs, inside = append(verbs, r), false
		}
	}
	return verbs
}

// Join joins errors with semicolons, the cause first. It drops nil, and what an earlier error
// wraps. It returns a single error unchanged, and nil if none is left.
func Join(all ...error) error {
	var kept []error
	for _, err := range all {
		if err == nil || wrapped(kept, err) {
			continue
		}
		kept = append(kept, err)
	}
	switch len(kept) {
	case 0:
		return nil
	case 1:
		return kept[0]
	}
	texts := make([]string, len(kept))
	named := false
	for i, err := range kept {
		texts[i] = Text(err)
		rest := withoutPrefix(texts[i])
		if named {
			texts[i] = rest
		}
		named = named || rest != texts[i]
	}
	return &composed{strings.Join(texts, "; "), kept}
}

// wrapped reports whether one of the errors wraps err.
func wrapped(all []error, err error) bool {
	for _, other := range all {
		if errors.Is(other, err) {
			return true
		}
	}
	return false
}
