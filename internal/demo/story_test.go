package main

import (
	"os"
	"slices"
	"strings"
	"testing"
)

func TestStory(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	s := newStory(&out)
	s.grant(grant{holder: "B", token: 2})
	s.grant(grant{holder: "A", token: 1})
	s.say(bad, "A", "%s", strings.Repeat("word ", 30))
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 3 || !strings.HasSuffix(lines[0], "granted (holder, token): A 1, B 2") {
		t.Errorf("got %q", lines)
	}
	for _, line := range lines {
		if len(line) > width {
			t.Errorf("%d columns: %q", len(line), line)
		}
	}
	if strings.Contains(out.String(), "\x1b") {
		t.Errorf("colour, but not on a terminal: %q", out.String())
	}
}

func TestWrap(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]string{
		"":                     {""},
		"one two three":        {"one two", "three"},
		"a-word-that-is-wider": {"a-word-that-is-wider"},
		"a a-word-that-is-so":  {"a", "a-word-that-is-so"},
	} {
		if got := wrap(text, 8); !slices.Equal(got, want) {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}

func TestNoColourInFiles(t *testing.T) {
	t.Parallel()
	file, err := os.CreateTemp(t.TempDir(), "story")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if isTerminal(file) {
		t.Error("a file is no terminal")
	}
}

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
