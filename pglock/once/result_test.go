package once_test

import (
	"context"
	"errors"
	"testing"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/observe"
	"github.com/pglock/pglock-go/pglock/once"
)

// TestCallsOfDoAreReported by their outcomes.
func TestCallsOfDoAreReported(t *testing.T) {
	t.Parallel()
	own := errors.New("the function's")
	for name, tc := range map[string]struct {
		call func(f fixture, c *pglock.Client)
		want string
	}{
		"done":     {func(f fixture, c *pglock.Client) { _, _ = f.do(c, "k", nil) }, "done"},
		"repeated": {func(f fixture, c *pglock.Client) { _, _ = f.do(f.client(), "k", nil); _, _ = f.do(c, "k", own) }, "repeated"},
		"unknown":  {func(f fixture, c *pglock.Client) { _, _ = f.do(c, "k", own); _, _ = f.do(c, "k", nil) }, "unknown unknown"},
		"failed":   {func(f fixture, c *pglock.Client) { _, _ = f.do(c, "k", once.Failed(own)); _, _ = f.do(c, "k", nil) }, "failed failed"},
		"not done": {func(f fixture, c *pglock.Client) { _, _ = f.do(c, "k", once.NotDone(own)); _, _ = f.do(c, "k", nil) }, "failed done"},
		"mismatch": {func(f fixture, c *pglock.Client) {
			_, _ = f.do(c, "k", nil)
			_, _ = once.Do(f.t.Context(), c, "k", nil, f.pay("k", nil))
		}, "done failed"},
		"an invalid": {func(f fixture, c *pglock.Client) { _, _ = f.do(c, "", nil) }, ""},
		"busy": {func(f fixture, c *pglock.Client) {
			_, _ = once.Do(f.t.Context(), f.client(), "k", []byte("request"), func(context.Context, *pglock.Lease) (int64, error) {
				return f.do(c, "k", nil, once.WithWait(0))
			})
		}, "busy"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			var r locktest.Results
			tc.call(f, f.client(r.Observer()))
			all, got := r.Of(observe.KindOnce)
			if got != tc.want {
				t.Errorf("%q, want %q", got, tc.want)
			}
			for _, e := range all {
				if e.Name != once.LockName("k") || e.Duration <= 0 || (e.Err == nil) != (e.Outcome == observe.OutcomeDone || e.Outcome == observe.OutcomeRepeated) {
					t.Errorf("%+v", e)
				}
			}
		})
	}
}
