// Command bench measures the promises about speed and size. Each row is beside its floor and its
// peers, in one run:
//
//	make bench                                      # all rows but the long ones, B14, B15 and B19
//	make bench QUICK=1                              # the same in three minutes, as an indication
//	make bench ROW=B3,F1 KEEP=1                     # only these, and keep their figures
//	PGLOCK_BENCH_SERVER=postgres://… make bench ROW=B14  # on a server that runs already
//	make bench ROW=B1,B2 BASE=v1.0.0                # beside another version of the module
//	cd internal/bench && go run . -row B1 -rounds 9
//	cd internal/bench && go run . -short            # does it run? for CI
//
// It starts the PostgreSQL servers that it needs, with fsync on. A full run writes its figures to
// testdata/bench/results.json and draws a plot per row beside it. Each row has its own time, machine
// and scale there.
//
// # Reading the table
//
// Absolute figures depend on the machine, ratios much less. Each ratio is the median of the rounds,
// with the range beside it. A wide range means that the machine was busy with something else. Package
// trial documents how subjects take turns.
//
// The servers of peers are those that testdata/bench/peers.sh has put into the user's cache, because they are
// the newest that Debian has, or else those in PATH. Their versions and those of the peers' client libraries
// are printed, and kept in results.json.
//
// A floor is the least that any implementation on the same server must do. Where the distance to it has no
// target, the table shows it without a verdict.
//
// Rows that count operations per second take turns of a second, after a warm-up, on a server whose
// autovacuum runs every few seconds. A figure is marked as unsteady, in the table and in results.json,
// if its largest round is more than 1.5 times its smallest. An unsteady figure is not quoted, and its row is
// measured once more.
//
// # Another version
//
// With -base, the rows B1 to B4, B7, B8, B10, B17 and B18 have the same subjects once more, of the module at that
// commit or in that directory. The benchmark is built with it in a copy of its tree, and runs as a
// process that takes turns with this one, on servers of its own. The table shows the ratios, and
// nothing is kept.
//
// # The end of a run
//
// Ctrl-C and SIGTERM end a run at once. It prints the rows that are complete and keeps nothing. However
// a run ends, even by SIGKILL, its workers end with their standard input, and testserver's keeper ends
// the servers of PostgreSQL and of peers.
//
// # Exit status
//
//	0    no judged target was missed (a target without its peer is not judged)
//	1    a target was missed
//	2    the run failed
//	130  the run was interrupted
//
// # Adding a row
//
// A row is one file, <number>_<what>.go, with one function that returns a trial.Row and that rows.go
// lists. A peer is a Subject whose Open returns trial.ErrMissing if its server is not installed. This
// is a module of its own, so that the client libraries of peers reach no user of pglock.
package main
