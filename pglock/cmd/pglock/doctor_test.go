package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/testserver"
)

// TestDoctor prints a line for each check, exits with 1 if one fails, and prints the same as JSON.
func TestDoctor(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t, testserver.Options{Durable: true})
	c := bareCLI(t)
	c.set("PGLOCK_DATABASE_URL", server.URL())
	r := c.expect(1, "doctor")
	if !strings.Contains(r.stdout, "fail  schema ") || !strings.Contains(r.stdout, ": run pglock migrate up --schema pglock") || r.stderr != "" {
		t.Errorf("without tables: got %+v", r)
	}
	c.expect(0, "migrate", "up")
	r = c.expect(0, "doctor")
	lines := strings.Split(strings.TrimSuffix(r.stdout, "\n"), "\n")
	for _, line := range lines {
		if level, _, _ := strings.Cut(line, " "); level != "ok" && level != "warn" {
			t.Errorf("line %q", line)
		}
	}
	var object struct {
		OK     bool
		Checks []struct{ Check, Level, Found, Remedy string }
	}
	text := c.expect(0, "doctor", "--json")
	if err := json.Unmarshal([]byte(text.stdout), &object); err != nil || !object.OK || len(object.Checks) != len(lines) {
		t.Errorf("%v: %+v, %d lines: %s", err, object, len(lines), text.stdout)
	}
	for i, check := range object.Checks {
		if !strings.HasPrefix(lines[i], check.Level) || !strings.Contains(lines[i], check.Check) || check.Level == "warn" && check.Remedy == "" {
			t.Errorf("%+v is printed as %q", check, lines[i])
		}
	}
	if r := c.expect(0, "doctor", "--now"); r.stdout != "ok    nothing needs attention\n" {
		t.Errorf("nothing to do: %q", r.stdout)
	}
	c.set("PGLOCK_SCHEMA", "line\nbreak \x1b[31m") // can't inject anything into a terminal
	if r := c.expect(1, "doctor"); strings.Count(r.stdout, "\n") >= len(lines) || strings.ContainsAny(r.stdout, "\x1b\r") {
		t.Errorf("got %q", r.stdout)
	}
}

// TestDoctorWithoutServer: a failure, not an error.
func TestDoctorWithoutServer(t *testing.T) {
	t.Parallel()
	c := bareCLI(t)
	c.set("PGLOCK_DATABASE_URL", "postgres://me:hunter98-fish@127.0.0.1:1/none")
	r := c.expect(1, "doctor")
	if !strings.HasPrefix(r.stdout, "fail  connection  ") || strings.Count(r.stdout, "\n") != 1 || r.stderr != "" || leaks(r.stdout) {
		t.Errorf("got %+v", r)
	}
	if r := c.expect(1, "doctor", "--now"); !strings.HasPrefix(r.stdout, "fail  connection: ") || strings.Count(r.stdout, "\n") != 2 || leaks(r.stdout) {
		t.Errorf("got %+v", r)
	}
	if r := c.expect(1, "doctor", "--json"); !strings.Contains(r.stdout, `"ok": false`) || leaks(r.stdout) {
		t.Errorf("got %+v", r)
	}
	c.expect(statusUsage, "doctor", "now")
	c.set("PGLOCK_DATABASE_URL", broken[0])
	if r := c.expect(statusUsage, "doctor"); leaks(r.stderr) {
		t.Errorf("got %+v", r)
	}
}
