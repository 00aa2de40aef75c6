package errs_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/pglock/pglock-go/internal/errs"
)

func TestInvalidOptionKeepsTheTextAndTheCauses(t *testing.T) {
	t.Parallel()
	cause := errors.New("the cause")
	err := errs.InvalidOption("advisory", "timeout %v: must be positive: %w", -1, cause)
	if err.Error() != "advisory: timeout -1: must be positive: the cause" {
		t.Errorf("%q", err)
	}
	if !errors.Is(err, errs.ErrInvalidOption) || !errors.Is(err, cause) || errors.Is(err, errs.ErrInvalidName) {
		t.Errorf("%v is not what it wraps", err)
	}
}

func TestContextErr(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	caused, cancelCause := context.WithCancelCause(t.Context())
	cancelCause(boom)
	for name, tc := range map[string]struct {
		ctx  context.Context
		want []error
		text string
	}{
		"canceled": {canceled, []error{context.Canceled}, "context canceled"},
		"cause":    {caused, []error{context.Canceled, boom}, "context canceled: boom"},
	} {
		err := errs.ContextErr(tc.ctx)
		for _, want := range tc.want {
			if !errors.Is(err, want) {
				t.Errorf("%s: %v is not %v", name, err, want)
			}
		}
		if err.Error() != tc.text {
			t.Errorf("%s: %q, want %q", name, err, tc.text)
		}
	}
	if err := errs.ContextErr(t.Context()); err != nil {
		t.Errorf("a context that is not done: %v", err)
	}
}

func TestCheckText(t *testing.T) {
	t.Parallel()
	for text, valid := range map[string]bool{
		"": false, "a": true, "four": true, "fives": false, "é": true, "\xff": false, "a\x00": false,
	} {
		if err := errs.CheckText(text, 4); (err == nil) != valid {
			t.Errorf("%q: %v", text, err)
		}
	}
	if err := errs.CheckText(strings.Repeat("x", 10000), 0); err != nil {
		t.Errorf("without a limit: %v", err)
	}
}
