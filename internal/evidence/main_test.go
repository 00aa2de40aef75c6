//go:build unix

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const root = "../.."

// TestThePageIsThatOfTheRecords: a figure on the page that no run has written fails.
func TestThePageIsThatOfTheRecords(t *testing.T) {
	t.Parallel()
	want, err := pageOf(root)
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(root, page))
	if err != nil {
		t.Fatal(err)
	}
	if strings.ReplaceAll(string(got), "\r\n", "\n") != want {
		t.Errorf("%s is not what make evidence writes from %s:\n%s", page, records, want)
	}
}

func TestPartsAreTargets(t *testing.T) {
	t.Parallel()
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range parts {
		if !strings.Contains(string(makefile), "\n"+p.target+": ") {
			t.Errorf("the Makefile has no target %s", p.target)
		}
	}
	if err := run(t.Context(), []string{"nothing"}, t.Output()); err == nil || !strings.Contains(err.Error(), `"nothing"`) {
		t.Errorf("a part that does not exist: %v", err)
	}
}

func TestRead(t *testing.T) {
	t.Parallel()
	const output = `
    chaos_test.go:42: PGLOCK_CHAOS_SEED=77
        | server paused | 3 | 420 | 0 | 0 | no guard: 7 |
        | nemesis | rounds | operations | leases lost | violations | control |
    x_test.go:1: 76 schedules, 900 steps, 282 breaks
    x_test.go:2: 90 operations
    x_test.go:3: 20 operations
--- PASS: TestA (0.1s)
    --- PASS: TestA/b (0.1s)
--- SKIP: TestB (0.1s)
`
	var r record
	unclear := r.read(output, []figure{
		one("%s scripts of races, %s breaks of the SQL", `(\d+) schedules, \d+ steps, (\d+) breaks`),
		every("%s: %s rounds, %s operations, %s violations; without the protection: %s", `(?m)^\s*\| ([a-z][^|]+) \| (\d+) \| (\d+) \| \d+ \| (\d+) \| (.*) \|$`),
		one("%s worlds", `(\d+) worlds`),
		one("%s operations", `(\d+) operations`),
	})
	want := []string{"76 scripts of races, 282 breaks of the SQL", "server paused: 3 rounds, 420 operations, 0 violations; without the protection: no guard: 7"}
	if !slices.Equal(r.Figures, want) || !slices.Equal(unclear, []string{"%s worlds: 0 lines", "%s operations: 2 lines"}) || !slices.Equal(r.Seeds, []string{"77"}) || r.Passed != 2 || r.Failed != 0 || r.Skipped != 1 {
		t.Errorf("%+v, unclear: %q", r, unclear)
	}
}

// TestDocumentsAgreeWithTheRecordsInEachPart: a part that runs this package's tests, or those of the documents,
// would fail if it ran after another one whose result is not in the documents yet.
func TestDocumentsAgreeWithTheRecordsInEachPart(t *testing.T) {
	t.Chdir(t.TempDir())
	all := parts
	t.Cleanup(func() { parts = all })
	parts = []part{{target: "first"}, {target: "second"}}
	const makefile = "first:\n\t@touch figure\nsecond:\n\t@test -f drawn && grep -q 'make first. .*| passed' " + page + "\n" +
		"figures:\n\t@if test -f figure; then touch drawn; fi\n"
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	ok(os.WriteFile("Makefile", []byte(makefile), 0o600))
	ok(os.MkdirAll(filepath.Dir(page), 0o700))
	ok(os.WriteFile(".gitignore", []byte("figure\ndrawn\nbin\n"), 0o600))
	ok(exec.CommandContext(t.Context(), "sh", "-c", "git init -q && git add . && git -c user.name=a -c user.email=a@example.com commit -q -m a").Run())
	ok(run(t.Context(), nil, t.Output()))
	if text, err := os.ReadFile(page); err != nil || strings.Count(string(text), "| passed |") != 2 {
		t.Errorf("the page after both: %s, %v", text, err)
	}
}

// TestLimits: a target that is missed is a limit with a name, and a run that breaks is a failure, as is one
// without its figures.
func TestLimits(t *testing.T) {
	t.Chdir(t.TempDir())
	const makefile = "bench:\n\t@echo 'B1 misses its target ≤ 2: pglock 3.00'; exit 1\nbroken:\n\t@exit 1\nsilent:\n\t@:\n"
	if err := os.WriteFile("Makefile", []byte(makefile), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, target := range []string{"bench", "broken", "silent"} {
		p := parts[slices.IndexFunc(parts, func(p part) bool { return p.target == "bench" })]
		p.target = target
		r, err := p.run(t.Context(), "c0ffee", t.Output())
		if limits := target == "bench"; err != nil || r.OK != limits || r.Limits != limits {
			t.Errorf("%s: %+v, %v", target, r, err)
		}
	}
	if text, err := pageOf("."); err != nil || !strings.Contains(text, "| passed, with the limits below |") || !strings.Contains(text, "- B1 misses its target ≤ 2: pglock 3.00\n") {
		t.Errorf("%s, %v", text, err)
	}
}
