// Package readme tests the README: its Go is an excerpt of a program or of an example that runs,
// its commands run, and its links lead somewhere.
package readme
