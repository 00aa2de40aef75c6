package pglock_test

import (
	"context"
	"errors"
	"testing"

	"github.com/pglock/pglock-go/pglock"
)

// TestRequire returns the lease of the caller, or says what is wrong: no lock, another one, an ended one.
func TestRequire(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		c := f.open()
		l := try(t, c, "n")
		if got, err := pglock.Require(l.Context(), "n"); err != nil || got != l {
			t.Errorf("under the lock: %v, %v", got, err)
		}
		for what, ctx := range map[string]context.Context{"no lock": t.Context(), "another one": l.Context()} {
			if got, err := pglock.Require(ctx, "m"); !errors.Is(err, pglock.ErrNotAcquired) || got != nil {
				t.Errorf("%s: %v, %v", what, got, err)
			}
		}
		release(t, l)
		if got, err := pglock.Require(l.Context(), "n"); !errors.Is(err, pglock.ErrReleased) || got != nil {
			t.Errorf("after the release: %v, %v", got, err)
		}
		again := try(t, c, "n")
		if got, err := pglock.Require(context.WithValue(again.Context(), valueKey{}, 1), "n"); err != nil || got != again {
			t.Errorf("under the next one: %v, %v", got, err)
		}
		release(t, again)
	})
}
