package schema_test

import (
	"strings"
	"testing"

	"github.com/pglock/pglock-go/internal/schema"
)

// TestSessionOf: a client's connections are found by its holder's name, and those of others are not.
func TestSessionOf(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("pod-", 20) + "7f9:1:ABCDEF"
	for _, tc := range []struct {
		app, holder, session string
		is                   bool
	}{
		{"", "web-1:7:ABCDEF", "web-1:7:ABCDEF (pglock)", true},
		{"", long, long[len(long)-54:] + " (pglock)", true},
		{"", strings.Repeat("ä", 40), strings.Repeat("ä", 27) + " (pglock)", true},
		{"web-1:7", "web-1:7:ABCDEF", "web-1:7 (pglock)", true},
		{"api-1", "api-1", "api-1 (pglock)", true},
		{"web-1", "web-10:7:ABCDEF", "web-1 (pglock)", false},
		{"1", "api-1", "1 (pglock)", false},
		{"shop", "web-1:7:ABCDEF", "shop (pglock)", false},
		{strings.Repeat("x", 80), "h", strings.Repeat("x", 54) + " (pglock)", false},
		{"", "", " (pglock)", false},
	} {
		if got := schema.ApplicationName(tc.app, tc.holder); got != tc.session || schema.SessionOf(got, tc.holder) != tc.is {
			t.Errorf("%q of %q is %q, which is its session: %t", tc.app, tc.holder, got, !tc.is)
		}
	}
	if schema.SessionOf("web-1:7", "web-1:7:ABCDEF") || schema.SessionOf("other:1:ABCDEF (pglock)", "web:1:ABCDEF") {
		t.Error("a session of another program, or of another client")
	}
}
