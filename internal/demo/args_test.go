package main

import (
	"io"
	"testing"
)

func TestArguments(t *testing.T) {
	t.Parallel()
	for arg, want := range map[string]int{"-h": 0, "more": exitUsage, "-speed=1": exitUsage} {
		if got := run([]string{arg}, io.Discard, io.Discard); got != want {
			t.Errorf("%s: exit status %d, want %d", arg, got, want)
		}
	}
}
