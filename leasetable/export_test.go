package leasetable

// Statements returns all statements, rendered for a schema.
func Statements(schema string) map[string]string { return statements(schema) }

// Files are the statements in files.
var Files = sqlFiles
