package migrations

import (
	"errors"
	"fmt"

	"github.com/golang-migrate/migrate/v4"
	"github.com/golang-migrate/migrate/v4/database"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock/pglock-go/internal/condition"
	"github.com/pglock/pglock-go/internal/schema"
)

var (
	// ErrPrivilege: the role may not create what a migration creates. The
	// *PrivilegeError around it names the right.
	ErrPrivilege = condition.ErrPrivilege

	// ErrDirty: an earlier migration stopped half-way. The *DirtyError around
	// it tells the way out.
	ErrDirty = errors.New("migrations: dirty version")

	// ErrNoVersion: this module has no migration of that number.
	ErrNoVersion = errors.New("migrations: no such version")

	// ErrNewer: the tables were made by a later version of this module.
	ErrNewer = schema.ErrNewer

	// ErrInvalidOption: an option makes no sense.
	ErrInvalidOption = condition.ErrInvalidOption

	// ErrNoRole: a role that rights shall be granted to doesn't exist.
	ErrNoRole = errors.New("migrations: no such role")

	// ErrInvalidSchema: PostgreSQL would not keep that schema name as it is.
	ErrInvalidSchema = schema.ErrInvalidName
)

// PrivilegeError tells which right a role lacks, and on what.
type PrivilegeError struct {
	Role  string // who asked
	Right string // as in GRANT, for instance CREATE
	On    string // for instance: database "shop"
	Cause error  // what the server said, nil if it was not asked
}

func (e *PrivilegeError) Error() string {
	if e.Right == "" {
		return fmt.Sprintf("%v: role %q: %v: let the owner of the tables migrate", ErrPrivilege, e.Role, e.Cause)
	}
	return fmt.Sprintf("%v: role %q lacks %s on %s: GRANT %s ON %s TO %s, or let a role that has it run `pglock migrate up`",
		ErrPrivilege, e.Role, e.Right, e.On, e.Right, e.On, schema.Quote(e.Role))
}

// Unwrap makes errors.Is find ErrPrivilege and the server's error.
func (e *PrivilegeError) Unwrap() []error { return []error{ErrPrivilege, e.Cause} }

// DirtyError tells that the process that migrated to Version died, or failed,
// before it recorded the outcome.
type DirtyError struct {
	Schema  string
	Version int
	Cause   error // the failure, if it was this call's own
}

func (e *DirtyError) Error() string {
	cause := ""
	if e.Cause != nil {
		cause = fmt.Sprintf(" (%v)", e.Cause)
	}
	return fmt.Sprintf("%v: %d of schema %q did not finish%s. A migration is one transaction, so it was applied as a whole or not at all: "+
		"`SELECT %s.pglock_schema_version()` answers %d if it was. Then run `pglock migrate force %d`; otherwise mend the cause, run `pglock migrate force %d` and `pglock migrate up`",
		ErrDirty, e.Version, e.Schema, cause, schema.Quote(e.Schema), e.Version, e.Version, e.Version-1)
}

// Unwrap makes errors.Is find ErrDirty and the failure.
func (e *DirtyError) Unwrap() []error { return []error{ErrDirty, e.Cause} }

// explain turns what golang-migrate or the server said into this package's errors.
func (c config) explain(err error) error {
	if err == nil {
		return nil
	}
	var dirty migrate.ErrDirty
	if errors.As(err, &dirty) {
		return &DirtyError{Schema: c.schema, Version: dirty.Version}
	}
	// golang-migrate wraps by a field, not by Unwrap, and by value as well as by pointer.
	cause := err
	var byValue database.Error
	var byPointer *database.Error
	switch {
	case errors.As(err, &byValue):
		cause = byValue.OrigErr
	case errors.As(err, &byPointer):
		cause = byPointer.OrigErr
	}
	var pg *pgconn.PgError
	if errors.As(cause, &pg) && pg.Code == "42501" { // insufficient_privilege
		return &PrivilegeError{Role: c.role, Cause: pg}
	}
	return fmt.Errorf("migrations: schema %q: %w", c.schema, cause)
}
