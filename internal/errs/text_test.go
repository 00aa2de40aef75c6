package errs_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
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

// TestPrefixesAreThePackages: each package whose errors begin with its name is known here, and no
// other name is. The errors of package link begin with "pglock: " too, the name that users know. An
// error that wraps another one is made by Errorf, which removes the name of the inner one's package.
func TestPrefixesAreThePackages(t *testing.T) {
	t.Parallel()
	root := os.DirFS("../..")
	begins := regexp.MustCompile(`(?:errors\.New|Errorf)\("([a-z]+): `)
	wraps := regexp.MustCompile(`fmt\.Errorf\("[a-z]+: [^"]*%w[^"]*"`)
	linked := []string{"backoff", "errs", "pgtx", "schema", "timing"} // of internal: a user's program links them
	others := []string{".git", "testdata", "examples", "pglock/cmd", "pglock/otelpglock"}
	used := map[string]bool{}
	err := fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (slices.Contains(others, name) || path.Dir(name) == "internal" && !slices.Contains(linked, path.Base(name))):
			return fs.SkipDir
		case d.IsDir() || path.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go"):
			return nil
		}
		text, err := fs.ReadFile(root, name)
		if err != nil {
			return err
		}
		for _, m := range begins.FindAllSubmatch(text, -1) {
			begin := string(m[1])
			used[begin] = true
			part := strings.HasPrefix(name, "internal/") && begin != path.Base(path.Dir(name)) // of an error of another package
			if !part && !slices.Contains(errs.Prefixes, begin+": ") {
				t.Errorf("%s: errors begin with %q", name, begin)
			}
		}
		for _, m := range wraps.FindAll(text, -1) {
			t.Errorf("%s: %s, not errs.Errorf", name, m)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range errs.Prefixes {
		if !used[strings.TrimSuffix(p, ": ")] {
			t.Errorf("no error begins with %q", p)
		}
	}
}
