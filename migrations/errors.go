package migrations

import (
	"errors"
	"fmt"

	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/pgtx"
	"github.com/pglock/pglock-go/internal/schema"
)

var (
	// ErrPrivilege: the role may not create what a migration creates. The *PrivilegeError around
	// it names the right.
	ErrPrivilege = errs.ErrPrivilege

	// ErrDirty: a migration did not finish. The *DirtyError around it says how to continue.
	ErrDirty = errors.New("migrations: dirty version")

	// ErrUntrusted: another role owns the schema, may create objects in it, or has left some in it.
	// Migrations would run that role's code with the rights of this one, so nothing was changed.
	// Members of this role and superusers are trusted, and the error names the remedy.
	ErrUntrusted = errors.New("migrations: untrusted schema")
	// ErrNoVersion: this module has no migration of that number.
	ErrNoVersion = errors.New("migrations: no such version")

	// ErrNewer: a later version of this module has migrated the tables.
	ErrNewer = schema.ErrNewer

	// ErrInvalidOption: an option is invalid, and the error names the rule.
	ErrInvalidOption = errs.ErrInvalidOption

	// ErrNoRole: the role of WithUser, WithReader, WithWriter or WithOwner does not exist.
	ErrNoRole = errors.New("migrations: no such role")

	// ErrDriver: the *sql.DB of UpDB does not run on pgx's stdlib driver, so nothing was done.
	ErrDriver = errs.ErrDriver
)

// PrivilegeError reports which right a role lacks, and on which object.
type PrivilegeError struct {
	Role   string // of the connection
	Right  string // as in GRANT, for instance CREATE
	On     string // for instance: database "shop"
	Remedy string // a statement for the owner of the tables; empty if there is none
	Cause  error  // the server's; nil if the right was missing before the first statement
}

func (e *PrivilegeError) Error() string {
	switch {
	case e.Remedy != "":
		return fmt.Sprintf("%v: role %q: %s: let the owner of the tables run: %s", ErrPrivilege, e.Role, errs.Reason(e.Cause), e.Remedy)
	case e.Right == "":
		return fmt.Sprintf("%v: role %q: %s: let the owner of the tables migrate", ErrPrivilege, e.Role, errs.Reason(e.Cause))
	}
	return fmt.Sprintf("%v: role %q lacks %s on %s: GRANT %s ON %s TO %s, or let a role that has it run `pglock migrate up --grant-user %s`",
		ErrPrivilege, e.Role, e.Right, e.On, e.Right, e.On, schema.Quote(e.Role), schema.ShellWord(e.Role))
}

func (e *PrivilegeError) Unwrap() []error { return []error{ErrPrivilege, e.Cause} }

// DirtyError reports that a process that migrated to Version, up or down, died or failed before it
// recorded the outcome.
type DirtyError struct {
	Schema  string
	Version int   // the migration's target, 0 for no tables
	Found   int   // the version of the tables, -1 if it could not be read
	Cause   error // the failure; nil if it was an earlier call's
}

func (e *DirtyError) Error() string {
	cause := ""
	if e.Cause != nil {
		cause = " (" + errs.Reason(e.Cause) + ")"
	}
	text := fmt.Sprintf("%v: a migration of schema %q to version %d did not finish%s. It is one transaction, so it was applied as a whole or not at all: ",
		ErrDirty, e.Schema, e.Version, cause)
	if e.Found < 0 {
		return text + fmt.Sprintf("run `pglock migrate force N`, where N is the result of `SELECT %s.pglock_schema_version()`, or 0 if there is no such function", schema.Quote(e.Schema))
	}
	return text + fmt.Sprintf("the tables are at version %d. Run `pglock migrate force %d`, and then `pglock migrate up` or `pglock migrate down --yes`", e.Found, e.Found)
}

func (e *DirtyError) Unwrap() []error { return []error{ErrDirty, e.Cause} }

// explain turns an error of golang-migrate or the server into one of this package.
func (c config) explain(err error) error { return c.explainWith(err, "") }

// explainWith is explain with a statement that grants the missing right.
func (c config) explainWith(err error, remedy string) error {
	switch {
	case err == nil:
		return nil
	case pgtx.LoginRejected(err):
		err = pgtx.ExplainLogin(err)
	case pgtx.SQLState(err) == pgtx.InsufficientPrivilege:
		return &PrivilegeError{Role: c.role, Remedy: remedy, Cause: err}
	case pgtx.SQLState(err) == pgtx.ReadOnlySQLTransaction:
		return errs.Errorf("migrations: schema %q: %w: the server is a standby, or default_transaction_read_only is on", c.schema, err)
	case pgtx.SQLState(err) == pgtx.FeatureNotSupported:
		return errs.Errorf("migrations: schema %q: %w: the server lacks a feature of PostgreSQL that pglock needs: use PostgreSQL", c.schema, err)
	}
	return errs.Errorf("migrations: schema %q: %w", c.schema, err)
}
