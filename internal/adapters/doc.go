// Package adapters holds the tests of pglock's adapters with the programs that they are for: goose, gocron,
// robfig/cron. It is a module of its own, so that none of these comes into pglock's go.mod.
package adapters
