// Command bench measures what the design promises about speed and size, each row
// beside its floor and its peers, in one run:
//
//	make bench                                      # all rows, a few minutes
//	cd internal/bench && go run . -row P1 -rounds 9
//	make bench ROW=P3,F1 KEEP=1                     # only those, and keep their figures
//	cd internal/bench && go run . -short            # does it run? for CI
//
// It starts the PostgreSQL servers that it needs, with fsync on. A full run leaves
// its figures in testdata/bench/results.json, and a plot of each row beside it. Rows that
// were measured and kept on their own since tell there when, where and how that was.
//
// # Reading the table
//
// Absolute figures belong to the machine, ratios much less so. Each ratio is the
// median of the rounds, with the range beside it; a wide range means that the machine
// was busy with something else. How subjects take turns is told in package trial.
//
// # Exit status
//
//	0  no judged target was missed (a target whose peer is missing is not judged)
//	1  a target was missed
//	2  something is broken
//
// # Adding a row
//
// A row is one file, <number>_<what>.go, with one function that returns a trial.Row,
// listed in rows.go. A peer is a Subject whose Open returns trial.ErrMissing where
// its server is not installed. This is a module of its own, so that the client
// libraries of peers reach nobody who uses pglock.
package main
