// Command bench measures the promises about speed and size. Each row is beside its floor and its
// peers, in one run:
//
//	make bench                                      # all rows, a few minutes
//	cd internal/bench && go run . -row B1 -rounds 9
//	make bench ROW=B3,F1 KEEP=1                     # only these, and keep their figures
//	cd internal/bench && go run . -short            # does it run? for CI
//
// It starts the PostgreSQL servers that it needs, with fsync on. A full run writes its figures to
// testdata/bench/results.json and draws a plot per row beside it. A row that was measured on its own
// has its own time, machine and scale there.
//
// # Reading the table
//
// Absolute figures depend on the machine, ratios much less. Each ratio is the median of the rounds,
// with the range beside it. A wide range means that the machine was busy with something else. Package
// trial documents how subjects take turns.
//
// # Exit status
//
//	0  no judged target was missed (a target without its peer is not judged)
//	1  a target was missed
//	2  the run failed
//
// # Adding a row
//
// A row is one file, <number>_<what>.go, with one function that returns a trial.Row and that main.go
// lists. A peer is a Subject whose Open returns trial.ErrMissing if its server is not installed. This
// is a module of its own, so that the client libraries of peers reach no user of pglock.
package main
