package schema

import (
	"context"
	_ "embed"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// VersionTable is the record of versions, which golang-migrate's command can read. Its name is not
// schema_migrations, because the schema may also hold the application's own version table.
const VersionTable = "pglock_migrations"

// ReadState is the statement of read_state.sql. Its parameters are the schema and VersionTable.
//
//go:embed read_state.sql
var ReadState string

// Stranger is a role that could run code as the one that reads the state, and why: see
// read_state.sql. The zero value means that there is none.
type Stranger struct{ Kind, Name, Role string }

// Explain returns what is wrong with the named schema, and the statement that mends it, which is
// empty if it belongs to the stranger. by is the stranger as SQL.
func (s Stranger) Explain(name string) (what, remedy, by string) {
	if by = s.Role; by != "PUBLIC" {
		by = Quote(by)
	}
	switch s.Kind {
	case "owner":
		return "belongs to role " + by, "", by
	case "create":
		return "grants CREATE to " + by, fmt.Sprintf("REVOKE CREATE ON SCHEMA %s FROM %s", Quote(name), by), by
	}
	return fmt.Sprintf("has the %s %s of role %s", s.Kind, s.Name, by), fmt.Sprintf("DROP %s %s", strings.ToUpper(s.Kind), s.Name), by
}

// Untrusted returns why nothing of the named schema may be used on a connection, with a colon
// before the remedy, or nothing. Everything that a role uses runs with its rights, so it trusts the
// owner of the schema, as far as its own rights go. A superuser does not trust other roles so far,
// because a role that may create a schema could become one. No statement of a session can give its
// rights up for good: with role=OWNER in the connection string a superuser says that it trusts the
// owner.
func Untrusted(ctx context.Context, conn *pgconn.PgConn, name string) (why string, err error) {
	if conn.ParameterStatus("is_superuser") == "off" {
		return "", nil
	}
	result := conn.ExecParams(ctx, ReadState, [][]byte{[]byte(name), []byte(VersionTable)}, nil, nil, nil).Read()
	if result.Err != nil || len(result.Rows) == 0 {
		return "", result.Err
	}
	row := result.Rows[0]
	s := Stranger{string(row[5]), string(row[6]), string(row[7])}
	if s.Kind == "" || string(row[8]) != "t" {
		return "", nil
	}
	what, remedy, by := s.Explain(name)
	if remedy == "" {
		remedy = fmt.Sprintf("connect as %s, or as a role to which it has granted rights; or add role=%s to the connection string, "+
			"if that role may do all that a superuser may", by, s.Role)
	}
	return fmt.Sprintf("schema %q %s, whose code could do all that the superuser %q may: %s", name, what, row[0], remedy), nil
}
