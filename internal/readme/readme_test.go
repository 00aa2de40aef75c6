package readme_test

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/pglock/pglock-go/internal/pgtest"
)

const root = "../.."

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// blocks returns the README's blocks of Go.
func blocks(t *testing.T) (all []string) {
	t.Helper()
	for _, m := range regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(read(t, root+"/README.md"), -1) {
		all = append(all, m[1])
	}
	if len(all) < 5 {
		t.Fatalf("the README has %d blocks of Go: the pattern does not find them", len(all))
	}
	return all
}

// flat returns the lines of Go without their indentation, and without empty lines.
func flat(source string) string {
	var b strings.Builder
	b.WriteByte('\n')
	for line := range strings.Lines(source) {
		if line = strings.TrimSpace(line); line != "" {
			b.WriteString(line + "\n")
		}
	}
	return b.String()
}

// TestGoIsFromExamplesThatRun: `go test` compiles and runs the examples, and compares their output.
func TestGoIsFromExamplesThatRun(t *testing.T) {
	t.Parallel()
	examples := map[string]string{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasPrefix(d.Name(), "example") || !strings.HasSuffix(d.Name(), "_test.go") {
			return err
		}
		if text := read(t, path); strings.Contains(text, "// Output:") {
			examples[path] = flat(text)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, block := range blocks(t) {
		if strings.HasPrefix(block, "package main\n") {
			continue // TestQuickStart
		}
		found := false
		for _, text := range examples {
			found = found || strings.Contains(text, flat(block))
		}
		if !found {
			t.Errorf("no example that runs has these lines:\n%s", block)
		}
	}
}

// TestQuickStart runs the program of the README, twice: the second run finds the tables.
func TestQuickStart(t *testing.T) {
	t.Parallel()
	program := blocks(t)[0]
	if comment, source, _ := strings.Cut(read(t, "quickstart/main.go"), "\n"); !strings.HasPrefix(comment, "//") || program != source {
		t.Error("the README's first block and quickstart/main.go differ")
	}
	url := pgtest.Database(t)
	pool := pgtest.PoolOn(t, url)
	if _, err := pool.Exec(t.Context(), "CREATE TABLE accounts AS SELECT 17 AS id, 100 AS balance"); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		cmd := exec.CommandContext(t.Context(), "go", "run", "./quickstart")
		cmd.Env = append(os.Environ(), "DATABASE_URL="+url)
		if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
			t.Fatalf("%v: %s", err, out)
		}
	}
	var balance int
	if err := pool.QueryRow(t.Context(), "SELECT balance FROM accounts").Scan(&balance); err != nil || balance != 80 {
		t.Errorf("after two withdrawals of 10 from 100: %d, %v", balance, err)
	}
}

// TestLinks: each link of the documents to a file of the repository leads to one.
func TestLinks(t *testing.T) {
	t.Parallel()
	links := 0
	for _, document := range []string{"README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"} {
		for _, m := range regexp.MustCompile(`\]\(([\w./-]+)(#[^)]*)?\)`).FindAllStringSubmatch(read(t, filepath.Join(root, document)), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			links++
			if _, err := os.Stat(filepath.Join(root, m[1])); err != nil {
				t.Errorf("%s: %v", document, err)
			}
		}
	}
	if links < 20 {
		t.Errorf("%d links: the pattern does not find them", links)
	}
}
