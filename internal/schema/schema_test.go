package schema_test

import (
	"os/exec"
	"testing"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/schema"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// odd are texts that break a careless quotation.
var odd = []string{"", "plain", "two words", "it's", `back\slash`, `\'; DROP TABLE x; --`, "a\nb", "$HOME `id` \"", "漢", "-x", "*", "!", "~", "$(id)", "'\\''", "''"}

// TestLiteralIsReadBack by the server, with either setting for backslashes.
func TestLiteralIsReadBack(t *testing.T) {
	t.Parallel()
	conn, err := pgtest.Pool(t).Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	settings := []string{"on", "off"}
	if !pgtest.EscapesAreOld(t) {
		settings = settings[:1]
	}
	for _, setting := range settings {
		if _, err := conn.Exec(t.Context(), "SET standard_conforming_strings TO "+setting); err != nil {
			t.Fatal(err)
		}
		for _, text := range odd {
			var got string
			results := conn.Conn().PgConn().Exec(t.Context(), "SELECT "+schema.Literal(text))
			all, err := results.ReadAll()
			if err == nil {
				got = string(all[0].Rows[0][0])
			}
			if err != nil || got != text {
				t.Errorf("with %s: %q became %q, %v", setting, text, got, err)
			}
		}
	}
	if _, err := conn.Exec(t.Context(), "RESET standard_conforming_strings"); err != nil {
		t.Fatal(err)
	}
}

// TestShellWordIsReadBack by a shell, as one word.
func TestShellWordIsReadBack(t *testing.T) {
	t.Parallel()
	for _, text := range odd {
		out, err := exec.Command("sh", "-c", `printf '%s|' `+schema.ShellWord(text)).Output()
		if err != nil || string(out) != text+"|" {
			t.Errorf("%q became %q, %v", text, out, err)
		}
	}
}
