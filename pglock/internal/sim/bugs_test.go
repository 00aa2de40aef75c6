package sim

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// bug is a change that makes the program wrong. A test of another package fails by one that no world shows.
type bug struct{ name, file, before, after, test, pkg string }

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
		case strings.HasPrefix(line, "by "):
			b.test, b.pkg, _ = strings.Cut(line[3:], " in ")
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

// overlay returns a file for the compiler that puts the bug in.
func (b bug) overlay(t *testing.T) string {
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
	return overlay
}

// build builds this package's test with the bug.
func (b bug) build(t *testing.T) (program string) {
	t.Helper()
	program = filepath.Join(t.TempDir(), "sim.test")
	if out, err := exec.CommandContext(t.Context(), "go", "test", "-c", "-vet=off", "-ldflags=-s -w", "-overlay", b.overlay(t), "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", b.name, err, out)
	}
	return program
}

// known reports whether the package of the bug's test has it.
func (b bug) known(t *testing.T) bool {
	t.Helper()
	files, _ := filepath.Glob(filepath.Join(root, b.pkg, "*_test.go"))
	return slices.ContainsFunc(files, func(file string) bool {
		text, err := os.ReadFile(file)
		return err == nil && strings.Contains(string(text), "\nfunc "+b.test+"(")
	})
}

// fails reports whether the bug's test fails by it, or never ends, and passes without it.
func (b bug) fails(t *testing.T) bool {
	t.Helper()
	failed := func(flags ...string) bool {
		args := append([]string{"test", "-count=1", "-vet=off", "-timeout=2m", "-run", "^" + b.test + "$"}, flags...)
		cmd := exec.CommandContext(t.Context(), "go", append(args, "./"+b.pkg)...)
		cmd.Dir, cmd.Env = root, append(os.Environ(), "PGLOCK_CHAOS=") // its short form
		out, err := cmd.CombinedOutput()
		t.Logf("%s in %s %v: %v", b.test, b.pkg, flags, err)
		return err != nil && (strings.Contains(string(out), "--- FAIL: "+b.test+" ") || strings.Contains(string(out), "test timed out"))
	}
	return failed("-overlay", b.overlay(t)) && !failed()
}

// found is what a hunt has found.
type found struct {
	seeds    []int // from one find to the next
	repeated int   // finds that a second run of the world finds as well
	rules    map[string]int
}

// hunt runs the program with a bug, and returns what it has found. A world that fails by the same
// rule without the bug shows nothing.
func (b bug) hunt(t *testing.T) found {
	program := exec.CommandContext(t.Context(), b.build(t), "-test.run=^TestHunt$", "-test.timeout=3m")
	program.Env = append(os.Environ(), "PGLOCK_HUNT=1")
	var stderr bytes.Buffer
	program.Stderr = &stderr
	answers, _ := program.StdinPipe() // both fail only after Start
	out, _ := program.StdoutPipe()
	if err := program.Start(); err != nil {
		t.Fatal(err)
	}
	f := found{rules: map[string]int{}}
	last := 0
	for lines := bufio.NewScanner(out); lines.Scan(); {
		switch part := strings.Split(lines.Text(), "\t"); part[0] {
		case "fails":
			seed, _ := strconv.Atoi(part[1])
			control := run(t, newPlan(uint64(seed)), false, everything)
			if slices.ContainsFunc(control.Failures, func(text string) bool { return rule(text) == part[2] }) {
				_, _ = fmt.Fprintln(answers, "not by the bug") // a program that has ended is seen below
				continue
			}
			_, _ = fmt.Fprintln(answers, "found")
			f.seeds, last = append(f.seeds, seed-last), seed
			f.rules[part[2]]++
			t.Log(strings.Join(part[1:], " "))
		case "again":
			f.repeated++
		}
	}
	if err := program.Wait(); err != nil && len(f.seeds) == 0 && !strings.Contains(stderr.String(), "test timed out") {
		t.Logf("the program fails: %v %.300s", err, stderr.String())
		f.seeds, f.rules = []int{1}, map[string]int{"the program fails": 1}
	}
	slices.Sort(f.seeds)
	return f
}

// TestBugsAreFound hunts for each bug, in the long form, and notes in testdata/bugs.tsv what it has
// found. The short form looks whether each bug could still be made.
func TestBugsAreFound(t *testing.T) {
	all := readBugs(t)
	worlds, tests := 0, 0
	for _, b := range all {
		t.Run(strings.ReplaceAll(b.name, " ", "_"), func(t *testing.T) {
			if b.test != "" && !b.known(t) {
				t.Errorf("no %s in %s", b.test, b.pkg)
			}
			switch {
			case os.Getenv("PGLOCK_CHAOS") == "":
				b.apply(t)
			case b.test == "":
				f := b.hunt(t)
				if len(f.seeds) == 0 {
					t.Error("NOT FOUND")
				} else {
					worlds++
				}
				note(t, b, f)
			case !b.fails(t):
				t.Error("NOT FOUND")
			default:
				tests++
			}
		})
	}
	if os.Getenv("PGLOCK_CHAOS") != "" {
		t.Logf("%d bugs: %d found by worlds, %d by a test of another package", len(all), worlds, tests)
	}
}

// note replaces the line of a bug in testdata/bugs.tsv.
func note(t *testing.T, b bug, f found) {
	const file, head = "testdata/bugs.tsv", "bug\tmedian of seeds\tfinds\tagain\trules"
	median := "not found"
	if n := len(f.seeds); n > 0 {
		median = strconv.Itoa(f.seeds[n/2])
	}
	text, _ := os.ReadFile(file) // perhaps there is none yet
	lines := slices.DeleteFunc(strings.Split(strings.TrimSpace(string(text)), "\n"), func(line string) bool {
		return line == "" || line == head || strings.HasPrefix(line, b.name+"\t")
	})
	lines = append(lines, fmt.Sprintf("%s\t%s\t%d\t%d\t%s", b.name, median, len(f.seeds), f.repeated, strings.Join(slices.Sorted(maps.Keys(f.rules)), ", ")))
	slices.Sort(lines)
	if err := os.WriteFile(file, []byte(head+"\n"+strings.Join(lines, "\n")+"\n"), 0o644); err != nil { //nolint:gosec // it is part of the tree
		t.Error(err)
	}
}

// TestHunt runs worlds for a minute, or until some have failed.
func TestHunt(t *testing.T) {
	if os.Getenv("PGLOCK_HUNT") == "" {
		t.Skip("TestBugsAreFound calls it")
	}
	finds, budget := 5, time.Minute
	if n, _ := strconv.Atoi(os.Getenv("PGLOCK_HUNTS")); n > 0 {
		finds = n
	}
	if d, err := time.ParseDuration(os.Getenv("PGLOCK_BUDGET")); err == nil {
		budget = d
	}
	began, answers := time.Now(), bufio.NewReader(os.Stdin)
	for seed := uint64(1); time.Since(began) < budget && finds > 0; seed++ {
		p := newPlan(seed)
		r := run(t, p, false, everything)
		if len(r.Failures) == 0 {
			continue
		}
		first := rule(r.Failures[0])
		fmt.Printf("fails\t%d\t%s\t%s\n", seed, first, strings.ReplaceAll(r.Failures[0], "\n", " "))
		if answer, _ := answers.ReadString('\n'); answer != "found\n" {
			continue
		}
		if again := run(t, p, false, everything); len(again.Failures) > 0 && rule(again.Failures[0]) == first {
			fmt.Println("again")
		}
		finds--
	}
}
