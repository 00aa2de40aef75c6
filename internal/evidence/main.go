//go:build unix

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

const (
	records = "testdata/evidence"
	page    = "docs/reference/evidence.md"
)

// record is what a part has shown.
type record struct {
	Part    string    `json:"part"`
	Command string    `json:"command"`
	Commit  string    `json:"commit"`
	Time    time.Time `json:"time"`
	Took    string    `json:"took"`
	Machine string    `json:"machine"`
	Seeds   []string  `json:"seeds,omitempty"`
	OK      bool      `json:"ok"`
	Limits  bool      `json:"limits,omitempty"` // it has failed, and the figures are why

	Packages int `json:"packages"` // that passed
	Passed   int `json:"passed"`   // tests, if the part prints each
	Failed   int `json:"failed"`
	Skipped  int `json:"skipped"`

	Figures []string `json:"figures,omitempty"`
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run runs the parts with these names, or all, and makes the page anew.
func run(ctx context.Context, names []string, out io.Writer) error {
	for _, name := range names {
		if !slices.ContainsFunc(parts, func(p part) bool { return name == p.target || name == p.name() }) {
			return fmt.Errorf("evidence: no part %q", name)
		}
	}
	commit, err := cleanCommit(ctx)
	if err != nil {
		return err
	}
	var failures []error
	for _, p := range parts {
		if len(names) > 0 && !slices.Contains(names, p.target) && !slices.Contains(names, p.name()) {
			continue
		}
		if old, err := readRecord("", p.name()); err == nil && old.OK && old.Commit == commit {
			fmt.Fprintf(out, "%s: known at this commit\n", p.name())
			continue
		}
		failures = append(failures, document(ctx, out))
		r, err := p.run(ctx, commit, out)
		if err != nil {
			return err
		}
		if !r.OK {
			failures = append(failures, fmt.Errorf("evidence: %s has failed: see bin/evidence-%s.log", p.name(), p.name()))
		}
	}
	return errors.Join(append(failures, document(ctx, out))...)
}

// document writes the page, and the figures of the other documents. The tests of the next part compare these with
// what runs have written.
func document(ctx context.Context, out io.Writer) error {
	text, err := pageOf("")
	if err == nil {
		err = os.WriteFile(page, []byte(text), 0o644) //nolint:gosec // a document
	}
	if err == nil {
		cmd := exec.CommandContext(ctx, "make", "--no-print-directory", "figures")
		cmd.Stdout, cmd.Stderr = out, out
		err = cmd.Run()
	}
	if err != nil {
		return fmt.Errorf("evidence: figures of documents: %w", err)
	}
	return nil
}

// cleanCommit returns the last commit of what the parts run, which has no changes. Documents, and what runs
// have written, are no part of that.
func cleanCommit(ctx context.Context) (string, error) {
	git := func(args ...string) (string, error) {
		out, err := exec.CommandContext(ctx, "git", append(args, "--", ".", ":!*.md", ":!testdata/bench", ":!*/bugs.tsv", ":!"+records)...).Output()
		return strings.TrimSpace(string(out)), err
	}
	status, err := git("status", "--porcelain")
	if err == nil && status != "" {
		err = fmt.Errorf("the tree has changes: must be a commit:\n%s", status)
	}
	if err != nil {
		return "", fmt.Errorf("evidence: %w", err)
	}
	return git("log", "-1", "--format=%h")
}

// run runs the part and writes its record, unless it is interrupted.
func (p part) run(ctx context.Context, commit string, out io.Writer) (record, error) {
	args := append([]string{"--no-print-directory", p.target}, strings.Fields(p.arg)...)
	r := record{Part: p.name(), Command: p.command(), Commit: commit, Time: time.Now().UTC().Truncate(time.Second)}
	fmt.Fprintf(out, "%s: %s\n", r.Part, r.Command)
	if err := os.MkdirAll("bin", 0o755); err != nil { //nolint:gosec // like that of go build
		return r, err
	}
	log, err := os.Create(filepath.Join("bin", "evidence-"+r.Part+".log"))
	if err != nil {
		return r, err
	}
	defer log.Close()
	var output bytes.Buffer
	cmd := exec.CommandContext(ctx, "make", args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) } // the tests too
	cmd.Stdout = io.MultiWriter(log, &output)
	cmd.Stderr = cmd.Stdout
	began := time.Now()
	err = cmd.Run()
	if ctx.Err() != nil {
		return r, context.Cause(ctx)
	}
	r.Took = time.Since(began).Round(time.Second).String()
	r.Machine = fmt.Sprintf("%s/%s, %d cores, %s", runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), runtime.Version())
	if unclear := r.read(output.String(), p.figures); err == nil && len(unclear) > 0 {
		err = fmt.Errorf("evidence: figures of %s that its output does not have, or several times: %q", r.Part, unclear)
		fmt.Fprintln(io.MultiWriter(log, out), err)
	}
	r.Limits = p.limits && err != nil && len(r.Figures) > 0
	r.OK = err == nil || r.Limits
	fmt.Fprintf(out, "%s: ok %v, %s, %s\n", r.Part, r.OK, r.Took, strings.Join(r.Figures, "; "))
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return r, err
	}
	if err := os.MkdirAll(records, 0o755); err != nil { //nolint:gosec // part of the tree
		return r, err
	}
	return r, os.WriteFile(recordPath("", r.Part), append(data, '\n'), 0o644) //nolint:gosec // part of the tree
}

var (
	seed   = regexp.MustCompile(`PGLOCK_\w+_SEED=(\d+)`)
	counts = map[string]*regexp.Regexp{
		"ok": regexp.MustCompile(`(?m)^ok  \t`), "PASS": regexp.MustCompile(`(?m)^ *--- PASS`), "FAIL": regexp.MustCompile(`(?m)^ *--- FAIL`), "SKIP": regexp.MustCompile(`(?m)^ *--- SKIP`),
	}
)

// read takes the counts, the seeds and the figures from an output, and returns the figures that it does not have,
// or has several times.
func (r *record) read(output string, figures []figure) (unclear []string) {
	number := func(what string) int { return len(counts[what].FindAllString(output, -1)) }
	r.Packages, r.Passed, r.Failed, r.Skipped = number("ok"), number("PASS"), number("FAIL"), number("SKIP")
	for _, m := range seed.FindAllStringSubmatch(output, -1) {
		r.Seeds = append(r.Seeds, m[1])
	}
	r.Seeds = slices.Compact(slices.Sorted(slices.Values(r.Seeds)))
	for _, f := range figures {
		matches := f.pattern.FindAllStringSubmatch(output, -1)
		if len(matches) == 0 || len(matches) > 1 && !f.all {
			unclear = append(unclear, fmt.Sprintf("%s: %d lines", f.text, len(matches)))
			continue
		}
		for _, m := range matches {
			var groups []any
			for _, group := range m[1:] {
				groups = append(groups, strings.TrimSpace(group))
			}
			r.Figures = append(r.Figures, fmt.Sprintf(f.text, groups...))
		}
	}
	return unclear
}

func recordPath(root, part string) string { return filepath.Join(root, records, part+".json") }

func readRecord(root, part string) (r record, err error) {
	data, err := os.ReadFile(recordPath(root, part))
	if err != nil {
		return r, err
	}
	return r, json.Unmarshal(data, &r)
}

// pageOf returns the page of the records below root.
func pageOf(root string) (string, error) {
	var b strings.Builder
	b.WriteString("# Evidence\n\n`make evidence` ran these parts and wrote this page from [its records](../../testdata/evidence). [Promises](promises.md)\n" +
		"says what each test requires, and what its control shows.\n\n" +
		"| part | what it shows | commit | when, and for how long | result |\n|---|---|---|---|---|\n")
	var figures strings.Builder
	for _, p := range parts {
		r, err := readRecord(root, p.name())
		switch {
		case errors.Is(err, os.ErrNotExist):
			fmt.Fprintf(&b, "| `%s` | %s | | not yet | |\n", p.command(), p.shows)
			continue
		case err != nil:
			return "", err
		}
		result := "passed"
		switch {
		case r.Limits:
			result = "passed, with the limits below"
		case !r.OK:
			result = "failed"
		}
		if r.Packages > 0 {
			result += fmt.Sprintf("; %d packages", r.Packages)
		}
		if r.Passed+r.Failed > 0 {
			result += fmt.Sprintf("; tests: %d passed, %d failed, %d left out", r.Passed, r.Failed, r.Skipped)
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s, %s | %s |\n", r.Command, p.shows, r.Commit, r.Time.Format("2006-01-02 15:04"), r.Took, result)
		if len(r.Figures) > 0 {
			fmt.Fprintf(&figures, "\n## %s\n\nOn %s", r.Command, r.Machine)
			if len(r.Seeds) > 0 {
				fmt.Fprintf(&figures, ", with the seed %s", strings.Join(r.Seeds, ", "))
			}
			figures.WriteString(":\n\n- " + strings.Join(r.Figures, "\n- ") + "\n")
		}
	}
	return b.String() + figures.String(), nil
}
