package runner

import (
	"hash/crc32"
	"reflect"
	"strings"

	"github.com/golang-migrate/migrate/v4/database"
)

// lockName is the default name of a version table's lock, for Run and Wrap. The database is not
// part of the name, because locks and leases belong to one database.
func lockName(quotedTable string) string { return "migrations of " + quotedTable }

// tableOf returns the quoted version table of a driver. It returns false unless the driver is one
// of golang-migrate's for PostgreSQL (pgx/v5, pgx, postgres) or embeds one.
//
// Those drivers derive their lock from the database, the schema and the table, but export none of
// them. A test fails when golang-migrate renames the fields. Wrap then refuses such a driver,
// rather than use another lock than the other replicas.
func tableOf(driver database.Driver) (quoted string, ok bool) {
	return tableIn(reflect.ValueOf(driver))
}

func tableIn(v reflect.Value) (quoted string, ok bool) {
	v = deref(v)
	if v.Kind() != reflect.Struct {
		return "", false
	}
	if config := deref(field(v, "config")); config.Kind() == reflect.Struct {
		schema, table := field(config, "migrationsSchemaName"), field(config, "migrationsTableName")
		if schema.Kind() == reflect.String && table.Kind() == reflect.String && table.Len() > 0 {
			return quoteTable(schema.String(), table.String()), true
		}
	}
	for i := range v.NumField() {
		if v.Type().Field(i).Anonymous {
			if quoted, ok := tableIn(v.Field(i)); ok {
				return quoted, true
			}
		}
	}
	return "", false
}

// field returns a field of the struct itself. The zero Value stands for a missing field, and for
// one of an embedded struct, which may be nil.
func field(v reflect.Value, name string) reflect.Value {
	f, ok := v.Type().FieldByName(name)
	if !ok || len(f.Index) != 1 {
		return reflect.Value{}
	}
	return v.FieldByIndex(f.Index)
}

// deref follows pointers and interfaces. It returns the zero Value for a nil one.
func deref(v reflect.Value) reflect.Value {
	for v.Kind() == reflect.Pointer || v.Kind() == reflect.Interface {
		v = v.Elem()
	}
	return v
}

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
