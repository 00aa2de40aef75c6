package conformance_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	listed    = regexp.MustCompile(`(?m)^- \*\*([IP])(\d+)`)
	testNames = regexp.MustCompile(`(?m)^func (Test([IP])(\d+)_\w+)`)
	cited     = regexp.MustCompile(`(?m)//.*?\b([IP])(\d+)\b`)
)

// TestCitedNumbersAreListed checks that each invariant and pitfall that a test cites is in a list of
// docs/reference/promises.md, and that the lists are numbered from 1 without a gap.
func TestCitedNumbersAreListed(t *testing.T) {
	t.Parallel()
	const root = "../.."
	text, err := os.ReadFile(filepath.Join(root, "docs/reference/promises.md"))
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	count := map[string]int{}
	for _, m := range listed.FindAllStringSubmatch(string(text), -1) {
		count[m[1]]++
		if want := number(m[1], fmt.Sprint(count[m[1]])); number(m[1], m[2]) != want {
			t.Errorf("the list has %s%s where %s is next", m[1], m[2], want)
		}
		known[number(m[1], m[2])] = true
	}
	if count["I"] == 0 || count["P"] == 0 {
		t.Fatalf("docs/reference/promises.md lists %d invariants and %d pitfalls", count["I"], count["P"])
	}
	names := 0
	err = filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		code, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, m := range testNames.FindAllStringSubmatch(string(code), -1) {
			names++
			if !known[number(m[2], m[3])] {
				t.Errorf("%s: %s cites a number that docs/reference/promises.md does not list", path, m[1])
			}
		}
		for _, m := range cited.FindAllStringSubmatch(string(code), -1) {
			if !known[number(m[1], m[2])] {
				t.Errorf("%s: a comment cites %s%s, which docs/reference/promises.md does not list", path, m[1], m[2])
			}
		}
		return nil
	})
	if err != nil || names < 50 {
		t.Errorf("found %d names of tests, %v", names, err)
	}
}

// number returns the form without leading zeros: tests and lists write P04.
func number(kind, digits string) string { return kind + strings.TrimLeft(digits, "0") }
