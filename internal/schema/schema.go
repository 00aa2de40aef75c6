// Package schema has the name and the version of the schema of pglock's tables, and the errors
// about them. It quotes names for statements, and renders the statements of SQL files for a schema.
package schema

import (
	"crypto/sha256"
	"encoding/hex"
	"io/fs"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/internal/errs"
)

const (
	// Default is the schema's name unless an option sets another.
	Default = "pglock"

	// Version is the number of the last migration, which this module needs.
	Version = 10

	// MaxName is NAMEDATALEN-1: PostgreSQL cuts longer names silently.
	MaxName = 63

	// LastTick and the name of a job are the resource, and the lock, of the job's last tick.
	LastTick = "last tick: "

	// NextSuffix ends the channel that tells a client of a release to waiters before it.
	NextSuffix = "_next"

	// AllSuffix ends the channel of a client's callers that wait for several names. In
	// lock_waiters, a slash and the number of such a caller follow.
	AllSuffix = "_all"
)

// HolderChannel returns the channel of the named schema for requests to its holders.
func HolderChannel(name string) string {
	sum := sha256.Sum256([]byte(name))
	return "pglock_holders_" + hex.EncodeToString(sum[:8])
}

// Validate returns an error that wraps ErrInvalidName unless name is 1 to 63 bytes of UTF-8 without
// NUL that do not begin with "pg_", which PostgreSQL reserves.
func Validate(name string) error {
	if err := errs.CheckText(name, MaxName); err != nil {
		return errs.Errorf("%w: it %w", ErrInvalidName, err)
	}
	if strings.HasPrefix(name, "pg_") {
		return errs.Errorf("%w: %q: must not begin with pg_, which PostgreSQL reserves", ErrInvalidName, name)
	}
	return nil
}

// Quote returns name as an SQL identifier.
func Quote(name string) string { return pgx.Identifier{name}.Sanitize() }

// Literal returns text as an SQL string literal, for a statement that a person can run.
func Literal(text string) string {
	quoted := "'" + strings.ReplaceAll(text, "'", "''") + "'"
	if !strings.Contains(text, `\`) {
		return quoted
	}
	return "E" + strings.ReplaceAll(quoted, `\`, `\\`) // has one meaning under each standard_conforming_strings
}

// ShellWord returns text as one word of a shell's command line, for a command that a person can
// run.
func ShellWord(text string) string {
	if text != "" && strings.Trim(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:@") == "" {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}

// Render returns a statement of an SQL file for the named schema. The files are written for the
// default schema, so that psql can run them: Render replaces each "pglock." by the quoted name, and
// drops comment lines.
func Render(sql, name string) string {
	var b strings.Builder
	for line := range strings.Lines(sql) {
		if !strings.HasPrefix(strings.TrimSpace(line), "--") {
			b.WriteString(line)
		}
	}
	return strings.TrimSpace(strings.ReplaceAll(b.String(), Default+".", Quote(name)+"."))
}

// Statements renders the statements in the directory sql of a package, and returns them by the
// names of their files, without the extension.
func Statements(files fs.FS, name string) map[string]string {
	all := map[string]string{}
	paths, _ := fs.Glob(files, "sql/*.sql") // the pattern is a constant
	for _, path := range paths {
		text, err := fs.ReadFile(files, path)
		if err != nil {
			panic(err) // it is embedded
		}
		all[path[len("sql/"):len(path)-len(".sql")]] = Render(string(text), name)
	}
	return all
}
