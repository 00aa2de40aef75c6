package errs_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/pglock/pglock-go/internal/errs"
)

func TestTextsAreOneLineAndNameOnePackage(t *testing.T) {
	t.Parallel()
	lines := errors.New("failed to connect to `user=u`:\n\t127.0.0.1:1 (a): refused\n\t127.0.0.1:2 (b):\trefused\n")
	const lined = "failed to connect to `user=u`: 127.0.0.1:1 (a): refused; 127.0.0.1:2 (b): refused"
	other := errors.New("mine")
	for _, tc := range []struct {
		err   error
		text  string
		wraps []error
	}{
		{errs.Errorf("pglock: get %q: %w", "n\n", lines), `pglock: get "n\n": ` + lined, []error{lines}},
		{errs.Errorf("%w: %w", errs.ErrReleased, errs.ErrClosed), "pglock: lock released: client closed", []error{errs.ErrReleased, errs.ErrClosed}},
		{errs.Errorf("100%% of %d %.3q: %w", 7, "long text", other), `100% of 7 "lon": mine`, []error{other}},
		{errs.Join(other, nil, lines), "mine; " + lined, []error{other, lines}},
		{errs.Join(errs.ErrLost, other, errs.ErrClosed), "pglock: lock lost; mine; client closed", []error{errs.ErrLost, other, errs.ErrClosed}},
		{errs.Join(other, errs.ErrLost, errs.ErrClosed), "mine; pglock: lock lost; client closed", []error{errs.ErrLost, other, errs.ErrClosed}},
		{errs.Join(fmt.Errorf("a: %w", other), other), "a: mine", []error{other}},
		{errs.Errorf("pglock: %w", context.Canceled), "pglock: context canceled", []error{context.Canceled}},
	} {
		if tc.err.Error() != tc.text {
			t.Errorf("%q, want %q", tc.err, tc.text)
		}
		for _, want := range tc.wraps {
			if !errors.Is(tc.err, want) {
				t.Errorf("%v is not %v", tc.err, want)
			}
		}
	}
	if err := errs.Join(nil, nil); err != nil {
		t.Errorf("nothing joined: %v", err)
	}
	if err := errs.Join(nil, other); err != other { //nolint:errorlint // identity is the point
		t.Errorf("a single error: %v", err)
	}
	if got := errs.OneLine("\x1b[31m\r\n a\tb \n"); got != "[31m; a b" {
		t.Errorf("%q", got)
	}
}
