package main

import (
	"strings"
	"testing"
)

func TestParseArgs(t *testing.T) {
	t.Parallel()
	for line, ok := range map[string]bool{
		"": true, "--workers 3 --ttl 1s": true, "--no-guard": true,
		"--workers 2": false, "--workers 27": false, "more": false, "--ttl 1m": false, "--ttl 1ms": false, "--speed 1": false,
	} {
		var errs strings.Builder
		_, err := parseArgs(strings.Fields(line), &errs)
		if (err == nil) != ok || (errs.Len() == 0) != ok {
			t.Errorf("%q: got %v, %q", line, err, errs.String())
		}
	}
}
