// Package schema knows where pglock's tables are and which version of them
// this module was made for. It is the one place that quotes a schema's name
// into a statement.
package schema

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
)

const (
	// Default is the schema when nobody names another.
	Default = "pglock"

	// Version is the number of the last migration, which this module needs.
	Version = 3

	// maxName is NAMEDATALEN-1: PostgreSQL would cut longer names silently.
	maxName = 63
)

// Validate returns an error that wraps ErrInvalidName unless PostgreSQL would
// keep name as it is: 1 to 63 bytes of UTF-8 without NUL, and no "pg_" in front,
// which is reserved for the server.
func Validate(name string) error {
	switch {
	case name == "":
		return fmt.Errorf("%w: it is empty", ErrInvalidName)
	case len(name) > maxName:
		return fmt.Errorf("%w: %d bytes, PostgreSQL keeps %d", ErrInvalidName, len(name), maxName)
	case !utf8.ValidString(name) || strings.ContainsRune(name, 0):
		return fmt.Errorf("%w: %q is not UTF-8 without NUL", ErrInvalidName, name)
	case strings.HasPrefix(name, "pg_"):
		return fmt.Errorf("%w: %q, names with pg_ in front belong to the server", ErrInvalidName, name)
	}
	return nil
}

// Quote returns name as an SQL identifier.
func Quote(name string) string { return pgx.Identifier{name}.Sanitize() }

// Render prepares a statement from a file for the schema of that name. The files
// are written for the default schema, so that psql runs them as they are: each
// "pglock." becomes the quoted name, and comment lines are left out.
func Render(sql, name string) string {
	var b strings.Builder
	for line := range strings.Lines(sql) {
		if !strings.HasPrefix(strings.TrimSpace(line), "--") {
			b.WriteString(line)
		}
	}
	return strings.TrimSpace(strings.ReplaceAll(b.String(), Default+".", Quote(name)+"."))
}
