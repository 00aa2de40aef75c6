//go:build unix

// Command evidence runs the long checks and keeps what they found, so that no figure of theirs is written by
// hand:
//
//	make evidence                              # all parts, hours
//	make evidence PARTS="chaos ha matrix-13"   # these
//
// A part is a target of the Makefile, and the matrix one for each version. Its record,
// testdata/evidence/PART.json, has the commit, the date, the machine, the seeds, the counts of tests, and the
// figures that its output has. A part whose record is of this commit, and passed, is left out, so a run that
// was interrupted continues. The tree must be clean, except for documents and what runs have written. Commits
// of these count for the one before them.
//
// The page docs/reference/evidence.md is made from the records, and a test compares it with them.
//
// # Exit status
//
//	0    each part passed, a benchmark perhaps with targets that it misses, which the page names
//	1    one has failed; its output is bin/evidence-PART.log
package main
