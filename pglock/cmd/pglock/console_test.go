package main

import (
	"errors"
	"testing"

	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/internal/text"
)

// TestDescribe: messages do not repeat the name of the package that returned the error.
func TestDescribe(t *testing.T) {
	t.Parallel()
	for err, want := range map[error]string{
		pglock.ErrUnavailable: "database unavailable",
		&pglock.LostError{Name: "n", Token: 7, Reason: "expired", Cause: errors.New("pglock: renew: no answer")}: `lost the lock "n" (token 7): expired (last renewal: renew: no answer)`,
		&pglock.BusyError{Name: "n", Holder: "h", Token: 7}:                                                      `acquire "n": held by h (token 7), for another 0s unless renewed`,
		errors.New("pglock: get \"n\": failed"):                                                                  `get "n": failed`,
		errors.New("migrations: up: failed"):                                                                     "up: failed",
		errors.New("other: failed"):                                                                              "other: failed",
	} {
		if got := describe(err); got != want {
			t.Errorf("%v: got %q, want %q", err, got, want)
		}
	}
	// French messages of the server have no-break spaces. They stay blanks.
	if got, want := text.OneLine("a\nb\r\n\x1b[31mc\u009b\u202ed\u200be\u2066\u00ad\U000e0041 \u00ab\u00a0é\u00a0\u00bb\u2028f"), "a b ?[31mc??d?e??? « é » f"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
