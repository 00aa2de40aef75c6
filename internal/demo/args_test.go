package main

import (
	"strings"
	"testing"
)

func TestParseArgs(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"":                        "",
		"--workers 3 --rounds 10": "",
		"--no-guard":              "",
		"--workers 2":             "--workers 2: must be from 3 to 26",
		"--rounds 9":              "--rounds 9: must be from 10 to 1000",
		"more":                    `unexpected argument "more"`,
		"--ttl 1s":                "",
		"--ttl 1m":                "--ttl 1m0s: must be from 300ms to 10s",
		"--speed 1":               "flag provided but not defined: -speed",
	} {
		var errs strings.Builder
		_, err := parseArgs(strings.Fields(line), &errs)
		if (err != nil) != (want != "") || !strings.Contains(errs.String(), want) {
			t.Errorf("%q: got %v, %q, want %q", line, err, errs.String(), want)
		}
	}
}
