// Package adapters tests pglock's adapters with the programs that they are for: goose, gocron,
// robfig/cron, and the database libraries GORM, sqlx, sqlc and ent, and package ui with Chromium. It is a
// separate module, so that pglock's go.mod does not require these programs.
//
// Package sqlcstore is generated, in its directory:
//
//	sqlc generate
package adapters
