// Package schema is the schema of package entstore.
package schema

import (
	"entgo.io/ent"
	"entgo.io/ent/schema/field"
)

// Account is a row of the table accounts.
type Account struct{ ent.Schema }

// Fields implements ent.Interface.
func (Account) Fields() []ent.Field {
	return []ent.Field{field.String("id"), field.Int("balance")}
}
