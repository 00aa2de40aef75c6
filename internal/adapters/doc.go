// Package adapters tests pglock's adapters with the programs that they are for: goose, gocron and
// robfig/cron. It is a separate module, so that pglock's go.mod does not require these programs.
package adapters
