package fencing

import (
	"strings"
	"sync"

	"github.com/pglock/pglock-go/internal/schema"
)

// rendered holds the statements for each schema in use: "schema\x00statement".
var rendered sync.Map

// render returns a statement, which is written for the default schema, for that one.
func render(statement, schemaName string) string {
	key := schemaName + "\x00" + statement
	if s, ok := rendered.Load(key); ok {
		return s.(string)
	}
	s, _ := rendered.LoadOrStore(strings.Clone(key), schema.Render(statement, schemaName))
	return s.(string)
}
