package main

import (
	"encoding/json"
	"strings"
	"testing"
)

// TestDefinitions: ls and show print what a lock is for.
func TestDefinitions(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.expect(0, "run", "job/nightly", "--", "true")
	c.expect(0, "run", "other", "--", "true")
	if r := c.expect(0, "show", "other"); strings.Contains(r.stdout, "defined as") {
		t.Errorf("show without any definition:\n%s", r.stdout)
	}
	c.expect(0, "define", "job/*", "--ttl", "90s", "--team", "billing", "--purpose", "one run at a time")
	c.expect(statusUsage, "define", "job/*", "--ttl", "-1s")
	c.expect(statusUsage, "define", "")
	c.expect(statusUsage, "define")
	if r := c.expect(0, "ls"); !strings.Contains(r.stdout, " TEAM\n") || strings.Count(r.stdout, " billing\n") != 1 || strings.Count(r.stdout, " -\n") != 1 {
		t.Errorf("ls:\n%s", r.stdout)
	}
	r := c.expect(0, "show", "job/nightly")
	for _, want := range []string{"defined as", "job/*", "billing", `"one run at a time"`, "1m30s"} {
		if !strings.Contains(r.stdout, want) {
			t.Errorf("show: no %q:\n%s", want, r.stdout)
		}
	}
	if r := c.expect(0, "show", "other"); !strings.Contains(r.stdout, "defined as   -") {
		t.Errorf("show of an undefined lock:\n%s", r.stdout)
	}
	var k lockJSON
	if r := c.expect(0, "show", "job/nightly", "--json"); json.Unmarshal([]byte(r.stdout), &k) != nil || k.Definition == nil || k.Definition.Team != "billing" || k.Definition.TTL != 90 {
		t.Errorf("show --json: %s", r.stdout)
	}
	c.expect(0, "undefine", "job/*")
	if r := c.expect(statusNoGrant, "undefine", "job/*"); r.stderr != "pglock: no definition of \"job/*\"\n" {
		t.Errorf("undefine of nothing: %s", r.stderr)
	}
}
