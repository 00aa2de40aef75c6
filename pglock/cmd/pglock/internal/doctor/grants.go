package doctor

import (
	"context"
	_ "embed"
	"fmt"

	"github.com/pglock/pglock-go/internal/schema"
)

// excess is what a role has on an object beyond what the grant functions grant.
type excess struct{ Kind, Object, Role, Rights string }

//go:embed sql/excess_grants.sql
var excessGrantsSQL string

// checkGrants compares the rights on pglock's objects with what the grant functions grant, and with
// what reading the locks needs. Default privileges and GRANT … ON ALL TABLES give more: the key of
// the seals, triggers on the lock tables, functions that only migrations call. It does not look at
// superusers and at members of roles such as pg_read_all_data, which have everything anyway.
func (e *exam) checkGrants(ctx context.Context) ([]Result, error) {
	if !e.usable {
		return nil, nil
	}
	found, err := rows[excess](ctx, e, excessGrantsSQL, schema.Quote(e.Schema))
	if err != nil {
		return nil, err
	}
	var problems []Result
	for _, x := range found {
		role := x.Role
		if role != "PUBLIC" {
			role = schema.Quote(role)
		}
		problems = append(problems, fail(fmt.Sprintf("%s has %s on %s, which no grant function grants: it can break locks or get past the fence", role, x.Rights, x.Object),
			fmt.Sprintf("let the owner run REVOKE %s ON %s %s FROM %s", x.Rights, x.Kind, x.Object, role)))
	}
	return orOK(problems, "no role has more than the grant functions grant")
}
