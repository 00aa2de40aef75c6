package sim

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// bug is a change that makes the program wrong.
type bug struct{ name, file, before, after string }

const root = "../../.."

// readBugs returns the bugs of testdata/bugs.txt, which says what its lines mean.
func readBugs(t *testing.T) (all []bug) {
	t.Helper()
	text, err := os.ReadFile("testdata/bugs.txt")
	if err != nil {
		t.Fatal(err)
	}
	var b *bug
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSuffix(line, "\n")
		switch rest := line[min(2, len(line)):]; {
		case strings.HasPrefix(line, "bug "):
			all = append(all, bug{name: line[4:]})
			b = &all[len(all)-1]
		case strings.HasPrefix(line, "in "):
			b.file = line[3:]
		case strings.HasPrefix(line, "-"):
			b.before += "\n" + rest
		case strings.HasPrefix(line, "+"):
			b.after += "\n" + rest
		case line != "" && line[0] != '#':
			t.Fatalf("a line that is nothing: %q", line)
		}
	}
	for i := range all {
		all[i].before, all[i].after = strings.TrimPrefix(all[i].before, "\n"), strings.TrimPrefix(all[i].after, "\n")
	}
	return all
}

// apply returns the file with the bug.
func (b bug) apply(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, b.file))
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(text), b.before); n != 1 {
		t.Errorf("%s: its text is in %s %d times:\n%s", b.name, b.file, n, b.before)
	}
	return strings.Replace(string(text), b.before, b.after, 1)
}

// build builds this package's test with the bug.
func (b bug) build(t *testing.T) (program string) {
	t.Helper()
	dir := t.TempDir()
	file, err := filepath.Abs(filepath.Join(root, b.file))
	if err != nil {
		t.Fatal(err)
	}
	changed, overlay := filepath.Join(dir, "changed.go"), filepath.Join(dir, "overlay.json")
	replace, _ := json.Marshal(map[string]map[string]string{"Replace": {file: changed}}) // texts only
	for name, text := range map[string]string{changed: b.apply(t), overlay: string(replace)} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	program = filepath.Join(dir, "sim.test")
	if out, err := exec.CommandContext(t.Context(), "go", "test", "-c", "-vet=off", "-ldflags=-s -w", "-overlay", overlay, "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", b.name, err, out)
	}
	return program
}

// TestBugsAreFound hunts for each bug, in the long form. The short one looks whether each could still
// be made.
func TestBugsAreFound(t *testing.T) {
	for _, b := range readBugs(t) {
		t.Run(strings.ReplaceAll(b.name, " ", "_"), func(t *testing.T) {
			if os.Getenv("PGLOCK_CHAOS") == "" {
				b.apply(t)
				return
			}
			program := exec.CommandContext(t.Context(), b.build(t), "-test.run=^TestHunt$", "-test.timeout=3m")
			program.Env = append(os.Environ(), "PGLOCK_HUNT=1")
			var errors bytes.Buffer
			program.Stderr = &errors
			out, failure := program.Output()
			var seeds []int
			repeated := 0
			rules := map[string]bool{}
			for line := range strings.Lines(string(out)) {
				if f := strings.Split(strings.TrimSpace(line), "\t"); f[0] == "found" {
					n, _ := strconv.Atoi(f[1])
					seeds = append(seeds, n)
					rules[f[3]] = true
					if f[2] == "again" {
						repeated++
					}
				}
			}
			switch slices.Sort(seeds); {
			case len(seeds) > 0:
				t.Logf("FOUND after %d seeds (median of %d), %d fail again: %v", seeds[len(seeds)/2], len(seeds), repeated, rules)
			case failure != nil && !strings.Contains(errors.String(), "test timed out"):
				text := errors.String() + string(out)
				t.Logf("FOUND by the end of the program: %v %s", failure, text[:min(len(text), 300)])
			default:
				t.Errorf("NOT FOUND: %s", out)
			}
		})
	}
}

// TestHunt runs worlds until one fails, again and again from another seed, for a minute.
func TestHunt(t *testing.T) {
	if os.Getenv("PGLOCK_HUNT") == "" {
		t.Skip("TestBugsAreFound calls it")
	}
	hunts, budget := 5, time.Minute
	if n, _ := strconv.Atoi(os.Getenv("PGLOCK_HUNTS")); n > 0 {
		hunts = n
	}
	if d, err := time.ParseDuration(os.Getenv("PGLOCK_BUDGET")); err == nil {
		budget = d
	}
	began := time.Now()
	for hunt := range uint64(hunts) {
		for n := uint64(1); ; n++ {
			if time.Since(began) > budget {
				return
			}
			p := newPlan(hunt*10000 + n)
			r := run(t, p, false, everything)
			if len(r.Failures) == 0 {
				continue
			}
			again := "otherwise"
			if r2 := run(t, p, false, everything); len(r2.Failures) > 0 && rule(r2.Failures[0]) == rule(r.Failures[0]) {
				again = "again"
			}
			fmt.Printf("found\t%d\t%s\t%s\t%s\n", n, again, rule(r.Failures[0]), r.Failures[0])
			break
		}
	}
}
