package readme_test

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/readme"
	"github.com/pglock/pglock-go/migrations"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/schedule"
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

// walk calls fn with each file of the repository whose name has the ending.
func walk(t *testing.T, ending string, fn func(path string)) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == ".git" || d.Name() == "bin"):
			return filepath.SkipDir
		case !d.IsDir() && strings.HasSuffix(d.Name(), ending):
			fn(path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// documents returns all documents of the repository by their path from its root.
func documents(t *testing.T) map[string]*readme.Document {
	t.Helper()
	all := map[string]*readme.Document{}
	walk(t, ".md", func(path string) {
		name, err := filepath.Rel(root, path)
		if err != nil {
			t.Fatal(err)
		}
		all[filepath.ToSlash(name)] = readme.Parse(read(t, path))
	})
	if len(all) < 20 || all["README.md"] == nil || all["docs/README.md"] == nil {
		t.Fatalf("found %d documents", len(all))
	}
	return all
}

// blocks returns the blocks of all documents in a language, by document.
func blocks(t *testing.T, language string) map[string][]readme.Block {
	t.Helper()
	found := map[string][]readme.Block{}
	for name, d := range documents(t) {
		for _, b := range d.Blocks {
			if b.Language == language {
				found[name] = append(found[name], b)
			}
		}
	}
	if len(found) < 3 {
		t.Fatalf("%d documents have blocks of %s: the parser does not find them", len(found), language)
	}
	return found
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

// sources returns the Go that tests run: examples with output, which `go test` compares, the programs in
// examples, which have tests beside them, and what is in this directory.
func sources(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	walk(t, ".go", func(path string) {
		name, _ := filepath.Rel(root, path)
		dir, file := filepath.Split(filepath.ToSlash(name))
		text := read(t, path)
		tests, _ := filepath.Glob(filepath.Join(filepath.Dir(path), "*_test.go"))
		switch {
		case strings.HasPrefix(file, "example") && strings.HasSuffix(file, "_test.go"):
			if strings.Contains(text, "// Output:") {
				found[name] = flat(text)
			}
		case strings.HasPrefix(dir, "examples/") && len(tests) > 0, strings.HasPrefix(dir, "internal/readme/"), name == "pglock/pglocktest/simulate_test.go":
			found[name] = flat(text)
		}
	})
	return found
}

// TestGoIsFromCodeThatRuns checks that each block of Go consists of lines of such a file.
func TestGoIsFromCodeThatRuns(t *testing.T) {
	t.Parallel()
	all := sources(t)
	for name, found := range blocks(t, "go") {
		for _, b := range found {
			if !slices.ContainsFunc(slices.Collect(maps.Values(all)), func(source string) bool { return strings.Contains(source, flat(b.Text)) }) {
				t.Errorf("%s:%d: no Go that tests run has these lines:\n%s", name, b.Line, b.Text)
			}
		}
	}
}

// TestQuickStart runs the first whole program of the README, twice: the second run finds the tables.
// Without a database it fails, and says so by its status.
func TestQuickStart(t *testing.T) {
	t.Parallel()
	programs := slices.DeleteFunc(blocks(t, "go")["README.md"], func(b readme.Block) bool { return !strings.HasPrefix(b.Text, "package main\n") })
	if len(programs) == 0 {
		t.Fatal("the README has no program")
	}
	if comment, source, _ := strings.Cut(read(t, "quickstart/main.go"), "\n"); !strings.HasPrefix(comment, "//") || programs[0].Text != source {
		t.Error("the README's first program and quickstart/main.go differ")
	}
	program := filepath.Join(t.TempDir(), "quickstart.exe")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, "./quickstart").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	run := func(url string) (string, error) {
		cmd := exec.CommandContext(t.Context(), program)
		cmd.Env = append(os.Environ(), "DATABASE_URL="+url)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	url := pgtest.Database(t)
	for _, want := range []string{"the balance is 90\n", "the balance is 80\n"} {
		if out, err := run(url); err != nil || !strings.HasSuffix(out, want) {
			t.Errorf("%v: %q, want %q", err, out, want)
		}
	}
	var status *exec.ExitError
	if out, err := run("postgres://127.0.0.1:1/none?connect_timeout=1"); !errors.As(err, &status) || status.ExitCode() != 1 || out == "" {
		t.Errorf("without a server: %v, %q", err, out)
	}
}

// TestLinks checks that each link of the documents within the repository leads to a file, and its anchor
// to a heading.
func TestLinks(t *testing.T) {
	t.Parallel()
	links, anchors := 0, 0
	all := documents(t)
	for name, d := range all {
		for _, target := range d.Links {
			if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
				continue
			}
			links++
			path, anchor, hasAnchor := strings.Cut(target, "#")
			if strings.HasSuffix(path, "_test.go") && !strings.HasPrefix(name, "testdata/") {
				t.Errorf("%s: link %s: tests import internal packages, so a reader can't copy them: show the lines", name, target)
			}
			file := name
			if path != "" {
				file = filepath.ToSlash(filepath.Join(filepath.Dir(name), path))
			}
			if _, err := os.Stat(filepath.Join(root, file)); err != nil || strings.HasPrefix(path, "/") {
				t.Errorf("%s: link %s: no such file: %v", name, target, err)
				continue
			}
			if !hasAnchor {
				continue
			}
			anchors++
			if all[file] == nil || !all[file].Anchors[anchor] {
				t.Errorf("%s: link %s: no such heading", name, target)
			}
		}
	}
	if links < 200 || anchors < 10 {
		t.Errorf("%d links and %d anchors: the parser does not find them", links, anchors)
	}
}

// TestEveryPageIsInTheIndex checks that docs/README.md leads to each page of docs.
func TestEveryPageIsInTheIndex(t *testing.T) {
	t.Parallel()
	all := documents(t)
	for name := range all {
		page, below := strings.CutPrefix(name, "docs/")
		if below && page != "README.md" && !slices.Contains(all["docs/README.md"].Links, page) {
			t.Errorf("docs/README.md has no link to %s", page)
		}
	}
}

// TestSize bounds the two documents that everybody reads.
func TestSize(t *testing.T) {
	t.Parallel()
	if n := len(strings.Fields(read(t, root+"/README.md"))); n > 1000 {
		t.Errorf("README.md has %d words: move something to docs", n)
	}
	if n := strings.Count(read(t, root+"/CONTRIBUTING.md"), "\n"); n > 100 {
		t.Errorf("CONTRIBUTING.md has %d lines: move something to docs", n)
	}
}

// before has what a page's SQL finds, besides the tables of pglock.
var before = map[string]string{
	"docs/guides/fencing-in-sql.md": `
		CREATE TABLE reports (id int PRIMARY KEY, body text NOT NULL);
		INSERT INTO reports VALUES (1, '');
		SELECT setval('pglock.fencing_tokens', 34);
		INSERT INTO pglock.distributed_locks (name, token, version, acquired_at, expires_at, holder)
		VALUES ('report:1', 34, 1, clock_timestamp(), clock_timestamp() + interval '1 hour', 'B')`,
}

// notRun has the blocks of SQL that can't run here, by page and first line, with the reason.
var notRun = map[[2]string]string{}

// TestSQL runs the blocks of SQL of each page, in their order, in a new database with pglock's tables. A
// block that is to fail says so in a comment: fails with SQLSTATE PGL01.
func TestSQL(t *testing.T) {
	t.Parallel()
	unused := maps.Clone(notRun)
	for name, found := range blocks(t, "sql") {
		var run []readme.Block
		for _, b := range found {
			first, _, _ := strings.Cut(b.Text, "\n")
			if key := [2]string{name, first}; notRun[key] != "" {
				delete(unused, key)
			} else {
				run = append(run, b)
			}
		}
		t.Run(strings.ReplaceAll(name, "/", "_"), func(t *testing.T) {
			t.Parallel()
			runSQL(t, before[name], run)
		})
	}
	for key := range unused {
		t.Errorf("%s has no such block: %s", key[0], key[1])
	}
}

func runSQL(t *testing.T, before string, blocks []readme.Block) {
	t.Helper()
	url := pgtest.Database(t)
	if err := migrations.Up(t.Context(), pgtest.PoolOn(t, url)); err != nil {
		t.Fatal(err)
	}
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if _, err := conn.Exec(t.Context(), before); err != nil {
		t.Fatal(err)
	}
	for _, b := range blocks {
		_, want, fails := strings.Cut(b.Text, "fails with SQLSTATE ")
		_, err := conn.Exec(t.Context(), b.Text)
		var refused *pgconn.PgError
		switch {
		case !fails && err != nil:
			t.Errorf("line %d: %v", b.Line, err)
		case fails && (!errors.As(err, &refused) || !strings.HasPrefix(want, refused.Code)):
			t.Errorf("line %d: got %v, and it says that it fails with %.5s", b.Line, err, want)
		}
		if conn.PgConn().TxStatus() == 'E' {
			if _, err := conn.Exec(t.Context(), "ROLLBACK"); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestTheTicksOfARestoredDatabaseAreSkipped: the statement of docs/guides/operating.md keeps a job whose last
// tick is older than the backup from running it again.
func TestTheTicksOfARestoredDatabaseAreSkipped(t *testing.T) {
	t.Parallel()
	var skip string
	for _, b := range blocks(t, "sql")["docs/guides/operating.md"] {
		if strings.Contains(b.Text, "fencing_high_water") {
			skip = b.Text
		}
	}
	pool := pgtest.PoolOn(t, pgtest.Database(t))
	if err := migrations.Up(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	client, err := pglock.Open(t.Context(), pool)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close(context.Background())
	job, err := schedule.New(client, "nightly")
	if err != nil {
		t.Fatal(err)
	}
	runs := 0
	run := func() error {
		return job.RunDue(t.Context(), schedule.Every(1000*24*time.Hour), func(context.Context, *pglock.Lease) error { runs++; return nil })
	}
	exec := func(sql string) {
		t.Helper()
		if _, err := pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	const restore = "UPDATE pglock.fencing_high_water SET token = token - 1000 * 86400000000"
	for range 2 { // the second time is the control
		if err := run(); err != nil {
			t.Fatal(err)
		}
		exec(restore)
	}
	exec(skip)
	if err := run(); !schedule.Done(err) || runs != 2 {
		t.Errorf("%d runs, the last one: %v", runs, err)
	}
}

// TestTheSampleIsFromARun: the guide to simulation shows what a run wrote.
func TestTheSampleIsFromARun(t *testing.T) {
	t.Parallel()
	sample := read(t, root+"/pglock/pglocktest/testdata/payments.txt")
	if guide := read(t, root+"/docs/guides/simulate.md"); !strings.Contains(guide, "```text\n"+sample+"```") {
		t.Errorf("the guide does not show this:\n%s", sample)
	}
}
