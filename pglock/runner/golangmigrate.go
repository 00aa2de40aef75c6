package runner

import (
	"hash/crc32"
	"strings"
)

// GolangMigrateKey returns the number of the advisory lock that golang-migrate's drivers for
// PostgreSQL (pgx/v5, pgx, postgres) acquire, for WithKey.
//
// databaseName is the name that the driver was given. For WithInstance that is the server's
// current_database(), unless the Config sets another. For a driver that was opened from a URL, as
// golang-migrate's command does, it is the path of the URL with its slash: "/shop". schema and
// table are those of the version table, by default the connection's current_schema() and
// "schema_migrations".
func GolangMigrateKey(databaseName, schema, table string) int64 {
	const salt = 1486364155 // of database.GenerateAdvisoryLockId; a test compares the results
	return int64(crc32.ChecksumIEEE([]byte(strings.Join([]string{schema, table, databaseName}, "\x00"))) * salt)
}
