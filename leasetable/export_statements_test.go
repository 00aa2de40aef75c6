package leasetable

// Statements returns all statements, rendered for a schema.
func Statements(schema string) any { return newStatements(schema) }
