package schema_test

import (
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/pglock/pglock-go/internal/schema"
)

// unquote reads a quoted text at the beginning of sql as the server's scanner does, and returns it and
// the rest. With escapes, a backslash quotes the next character.
func unquote(sql string, quote byte, escapes bool) (text, rest string, ok bool) {
	if sql == "" || sql[0] != quote {
		return "", sql, false
	}
	var b strings.Builder
	for i := 1; i < len(sql); i++ {
		switch {
		case escapes && sql[i] == '\\' && i+1 < len(sql):
			i++
			b.WriteByte(sql[i])
		case sql[i] != quote:
			b.WriteByte(sql[i])
		case i+1 < len(sql) && sql[i+1] == quote:
			i++
			b.WriteByte(quote)
		default:
			return b.String(), sql[i+1:], true
		}
	}
	return "", sql, false
}

// FuzzSchemaName quotes a name as an identifier, as a literal under both meanings of a backslash, and in
// a rendered statement. Each is read back as the name, with nothing after it. A shell reads words back in
// TestShellWordIsReadBack.
func FuzzSchemaName(f *testing.F) {
	for _, name := range []string{
		"pglock", "", "a", `"`, `""`, "'", `\`, `\'`, `\"`, "a.b", "pglock.", "$1", "$$", "%s", "a\nb", "-- a", "/*", "; DROP SCHEMA pglock; --", "pg_x", "PG_x",
		"\x00", "\xff", "é", strings.Repeat("é", 31) + "x", strings.Repeat("x", 64), "<here>", "<schema>", "'\\''", "`id`", "$(id)", "-x", "!", "~",
	} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		valid := name != "" && len(name) <= 63 && !strings.HasPrefix(name, "pg_") && utf8.ValidString(name) && !strings.ContainsRune(name, 0)
		if err := schema.Validate(name); (err == nil) != valid || err != nil && !errors.Is(err, schema.ErrInvalidName) {
			t.Fatalf("Validate(%q): %v", name, err)
		}
		if !valid {
			return
		}
		if got, rest, ok := unquote(schema.Quote(name), '"', false); got != name || rest != "" || !ok {
			t.Fatalf("Quote(%q) is %s: read as %q", name, schema.Quote(name), got)
		}
		literal := schema.Literal(name)
		plain, escaped := strings.CutPrefix(literal, "E")
		for _, escapes := range []bool{false, true} { // standard_conforming_strings on and off
			if got, rest, ok := unquote(plain, '\'', escapes || escaped); got != name || rest != "" || !ok {
				t.Fatalf("Literal(%q) is %s: read as %q", name, literal, got)
			}
		}
		got, rest, ok := unquote(schema.Render("-- of pglock.\npglock.t\n", name), '"', false)
		if got != name || rest != ".t" || !ok {
			t.Fatalf("Render with %q: %q, %q", name, got, rest)
		}
	})
}
