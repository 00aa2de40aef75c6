// Package adapters tests pglock's adapters with the programs that they are for: goose, gocron,
// robfig/cron, and the database libraries GORM, sqlx, sqlc and ent; package ui with Chromium; and the
// metrics of package otelpglock with Prometheus. It also tests the clients of the SQL protocol in
// docs/examples/clients. It is a separate module, so that pglock's go.mod does not require these programs.
//
// Package sqlcstore is generated, in its directory:
//
//	sqlc generate
package adapters
