//go:build unix

package main

import (
	"regexp"
	"strings"
)

// part is a target of the Makefile whose result is kept.
type part struct {
	target  string
	of      string // what of the target, if not the whole
	arg     string // further ones of make
	shows   string // for the page
	figures []figure
	limits  bool // it fails by its figures, such as a target that is missed, which are named limits then
}

// name is that of the part's record.
func (p part) name() string {
	if p.of != "" {
		return p.target + "-" + p.of
	}
	return p.target
}

func (p part) command() string { return strings.TrimSpace("make " + p.target + " " + p.arg) }

// figure is a figure of a part's output: what the pattern matches, each of its groups in place of a %s of the
// text. A pattern that matches nothing, or several lines unless all is set, fails the part.
type figure struct {
	text    string
	pattern *regexp.Regexp
	all     bool
}

func one(text, pattern string) figure   { return figure{text, regexp.MustCompile(pattern), false} }
func every(text, pattern string) figure { return figure{text, regexp.MustCompile(pattern), true} }

// targets are those of a benchmark, with what was measured.
var targets = []figure{every("%s", `(?m)^(\S+ (?:meets|misses) its target.*)$`)}

// parts are in the order in which they run: the shortest first.
var parts = []part{
	{target: "test", shows: "All tests, with the short forms of the long ones"},
	{target: "clock", shows: "I3 and I4 with a wall clock that is wrong by five minutes"},
	{target: "bench", shows: "The figures of [benchmarks](benchmarks.md), which have a file of their own", limits: true, figures: targets},
	{target: "bench", of: "long", arg: "ROW=B14,B15,B19 KEEP=1", shows: "Those of fleets and of ten minutes", limits: true, figures: targets},
	{target: "fuzz", arg: "TIME=1m", shows: "Input of any form", figures: []figure{every("%s", `(?m)^(Fuzz\w+)$`)}},
	{target: "ha", shows: "I2, and with synchronous replication every reported write, under Patroni", figures: []figure{
		every("%s replication, %s faults", `(?m)^(\w+) replication, (\d+) faults$`),
		every("%s grants, %s guarded writes reported, %s refused as stale", `(\d+) grants, (\d+) guarded writes reported, (\d+) refused as stale`),
		every("violations: %s", `(?m)^ *violations: (.*)$`),
	}},
	version("13"), version("15"), version("17"), version("18"), version("19"),
	{target: "chaos", shows: "I1 to I5, I9 and I11 under faults, and the long forms of other tests", figures: []figure{
		every("%s: %s rounds, %s operations, %s violations; without the protection: %s", `(?m)^\s*\| ([a-z][^|]+) \| (\d+) \| (\d+) \| \d+ \| (\d+) \| (.*) \|$`),
		one("%s of %s interleavings of two clients' statements, %s violations", `(\d+) of (\d+) interleavings in \S+, (\d+) violations`),
		one("%s operations of one client, and nothing grows", `nothing grows in (\d+) operations`),
	}},
	{target: "simulation", arg: "TIME=10m", shows: "All of the protocol in simulated worlds", figures: []figure{
		one("%s worlds, %s simulated seconds a second", `(\d+) worlds, (\d+) simulated seconds a second`),
		one("%s bugs seeded in the client or the fake: %s found by worlds, %s by a test of another package", `(\d+) bugs: (\d+) found by worlds, (\d+) by a test`),
	}},
}

func version(number string) part {
	return part{
		target: "matrix", of: number, arg: "VERSIONS=" + number, shows: "All of it on PostgreSQL " + number + ", through PgBouncer and pgpool-II",
		figures: []figure{every("%s", `(?m)^=== (PostgreSQL .*)$`)},
	}
}
