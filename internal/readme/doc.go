// Package readme tests the documents: the README, the pages in docs, and those of examples. Their Go
// is an excerpt of a program or of an example that runs, their SQL runs on a migrated database, their
// links and anchors lead somewhere, and the tables of the reference list what the code has. The tests
// of the command check the commands that the documents have.
package readme
