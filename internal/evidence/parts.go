package main

import "regexp"

// part is a target of the Makefile whose result is kept.
type part struct {
	target  string
	shows   string   // for the page
	args    []string // further ones of make
	figures []figure
}

// figure is a figure of a part's output: what the pattern matches, each of its groups in place of a %s of the
// text. With several matches, the last one counts, unless all is set.
type figure struct {
	text    string
	pattern *regexp.Regexp
	all     bool
}

func last(text, pattern string) figure  { return figure{text, regexp.MustCompile(pattern), false} }
func every(text, pattern string) figure { return figure{text, regexp.MustCompile(pattern), true} }

// parts are in the order in which they run: the shortest first.
var parts = []part{
	{"test", "All tests, with the short forms of the long ones", nil, nil},
	{"clock", "I3 and I4 with a wall clock that jumps by five minutes", nil, nil},
	{"bench", "The figures of [benchmarks](benchmarks.md), which have a file of their own", nil, []figure{
		every("%s", `(?m)^(\S+ misses its target: .*)$`),
	}},
	{"fuzz", "Input of any form", []string{"TIME=1m"}, []figure{every("%s", `(?m)^(Fuzz\w+)$`)}},
	{"ha", "I2, and with synchronous replication every reported write, under Patroni", nil, []figure{
		every("%s replication, %s faults", `(?m)^(\w+) replication, (\d+) faults$`),
		every("%s grants, %s guarded writes reported, %s refused as stale", `(\d+) grants, (\d+) guarded writes reported, (\d+) refused as stale`),
		every("violations: %s", `(?m)^ *violations: (.*)$`),
	}},
	{"matrix", "All of it on each version of PostgreSQL, through PgBouncer and pgpool-II", nil, []figure{every("%s", `(?m)^=== (.*)$`)}},
	{"chaos", "I1 to I5, I9 and I11 under faults, and the long forms of other tests", nil, []figure{
		every("%s: %s rounds, %s operations, %s violations; without the protection: %s", `(?m)^\s*\| ([a-z][^|]+) \| (\d+) \| (\d+) \| \d+ \| (\d+) \| (.*) \|$`),
		last("%s of %s interleavings of two clients' statements, %s violations", `(\d+) of (\d+) interleavings in \S+, (\d+) violations`),
		last("%s operations of one client, and nothing grows", `(\d+) operations`),
	}},
	{"simulation", "All of the protocol in simulated worlds", nil, []figure{
		last("%s worlds, %s simulated seconds a second", `(\d+) worlds, (\d+) simulated seconds a second`),
	}},
}
