package schema

import (
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock/pglock-go/internal/errs"
)

// The public packages export these sentinels under the same names.
var (
	ErrSchema      = errors.New("pglock: the database does not fit this program")
	ErrMissing     = errors.New("pglock: schema missing")
	ErrOutdated    = errors.New("pglock: schema older than this program")
	ErrNewer       = errors.New("pglock: schema newer than this program")
	ErrInvalidName = errs.Mark(errors.New("pglock: invalid schema name"), errs.ErrInvalidOption)
)

// Error reports how the schema in the database differs from the one that this program needs.
// errors.Is finds ErrSchema, its Kind and its Cause.
type Error struct {
	Kind   error  // ErrMissing, ErrOutdated or ErrNewer
	Name   string // of the schema
	Found  int    // version in the database, 0 if missing
	Oldest int    // version that programs must know, for ErrNewer
	Want   int    // version that this program needs, which is also the newest that it knows
	Cause  error  // the server's, may be nil
}

func (e *Error) Error() string {
	// The version is the first thing that a client asks of a schema.
	var pg *pgconn.PgError
	if errors.As(e.Cause, &pg) && pg.Code != "3F000" && !strings.Contains(pg.Message, "pglock_schema_version") {
		return fmt.Sprintf("%v: schema %q lacks an object (%s): run `pglock migrate up` or call migrations.Up, which makes it, or names what differs from version %d",
			e.Kind, e.Name, errs.Text(e.Cause), e.Want)
	}
	if errors.Is(e.Kind, ErrMissing) {
		return fmt.Sprintf("%v: no pglock tables in schema %q: run `pglock migrate up`, call migrations.Up, or name the right schema", e.Kind, e.Name)
	}
	if errors.Is(e.Kind, ErrNewer) {
		return fmt.Sprintf("%v: %q is at version %d, for programs that know %d or later, and this one knows %d: build it with a newer pglock",
			e.Kind, e.Name, e.Found, e.Oldest, e.Want)
	}
	return fmt.Sprintf("%v: %q is at version %d and this program needs %d: run `pglock migrate up` or call migrations.Up",
		e.Kind, e.Name, e.Found, e.Want)
}

func (e *Error) Unwrap() []error { return errs.Causes(ErrSchema, e.Kind, e.Cause) }

// Check returns an *Error unless this module can use the named schema. found is its version in the
// database, and oldest the version that a program must know at least: a newer schema that has only
// been expanded serves older programs too.
func Check(name string, found, oldest int) error {
	switch {
	case found < Version:
		return &Error{Kind: ErrOutdated, Name: name, Found: found, Want: Version}
	case oldest > Version:
		return &Error{Kind: ErrNewer, Name: name, Found: found, Oldest: oldest, Want: Version}
	}
	return nil
}

// Privilege returns the error of a statement that failed with insufficient_privilege on the tables
// of the named schema. where begins its text.
func Privilege(where, name string, err error) error {
	remedy := fmt.Sprintf("run SELECT %s.grant_user('ROLE')", Quote(name))
	if RowSecurity(err) {
		remedy = "disable row security on them, or create a policy that shows all rows: `pglock doctor` has the statement"
	}
	return errs.Errorf("%s: %w in schema %q: %w: let the owner of the tables %s", where, errs.ErrPrivilege, name, err, remedy)
}

// RowSecurity reports whether row security has refused the statement. It has the SQLSTATE of a
// missing right, which a grant does not mend, and the language of the text is that of the server.
func RowSecurity(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && (pg.Routine == "ExecWithCheckOptions" || pg.Routine == "check_enable_rls")
}

// WhyNotCockroachDB says why CheckEngine refuses that server, and the remedy.
const WhyNotCockroachDB = "the server is CockroachDB, on which advisory locks and FOR KEY SHARE lock nothing, " +
	"so that a lock could have two holders: use PostgreSQL"

// IsCockroachDB reports whether conn leads to CockroachDB, and sends nothing.
func IsCockroachDB(conn *pgconn.PgConn) bool { return conn.ParameterStatus("crdb_version") != "" }

// CheckEngine returns an error that wraps ErrSchema if conn leads to CockroachDB, where all
// statements of DoTx succeed and exclude nothing. The function unsafe_server() of the migrations
// finds the other servers on which locks are not safe.
func CheckEngine(conn *pgconn.PgConn) error {
	if !IsCockroachDB(conn) {
		return nil
	}
	return Unsafe(WhyNotCockroachDB)
}

// Unsafe returns an error that wraps ErrSchema and says why locks are not safe on a server.
func Unsafe(why string) error { return errs.Errorf("%w: %s", ErrSchema, why) }
