// Package examples has a test that runs the programs in its folders. Each program is complete and has a test of
// its own, so it can be copied: see README.md.
package examples
