package text_test

import (
	"strings"
	"testing"
	"time"

	"github.com/pglock/pglock-go/pglock/internal/text"
)

// TestShort: durations as they are shown.
func TestShort(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		-time.Second: "-1s", 0: "0s", 1500 * time.Microsecond: "1ms", 999 * time.Millisecond: "999ms", 1250 * time.Millisecond: "1.2s", 2 * time.Second: "2s",
		10 * time.Second: "10s", 59*time.Second + 999*time.Millisecond: "59s", 61 * time.Second: "1m1s", 59*time.Minute + 59*time.Second: "59m59s",
		3*time.Hour + 7*time.Minute: "3h7m", 49 * time.Hour: "2d1h",
	} {
		if got := text.Short(d); got != want {
			t.Errorf("%v: %s, want %s", d, got, want)
		}
	}
}

// TestBlanks: characters that look like nothing are written out, so that no two names look the same.
func TestBlanks(t *testing.T) {
	t.Parallel()
	for _, r := range []rune{0x034f, 0x115f, 0x2800, 0x3164, 0xfe0f, 0xffa0, 0xe0100, 0x200b} {
		name := "pay" + string(r) + "ment"
		if plain := text.Plain(name); strings.ContainsRune(plain, r) || plain[0] != '"' {
			t.Errorf("%U: %s", r, plain)
		}
		if line := text.OneLine(name); line != "pay?ment" {
			t.Errorf("%U: %s", r, line)
		}
	}
	for _, name := range []string{"漢字🔒é", "e\u0301", "a"} {
		if text.Plain(name) != name || text.OneLine(name) != name {
			t.Errorf("%s: %s", name, text.Plain(name))
		}
	}
}
