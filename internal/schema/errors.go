package schema

import (
	"errors"
	"fmt"

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
	Kind  error  // ErrMissing, ErrOutdated or ErrNewer
	Name  string // of the schema
	Found int    // version in the database, 0 if missing
	Want  int    // version that this program needs
	Cause error  // the server's, may be nil
}

func (e *Error) Error() string {
	if errors.Is(e.Kind, ErrMissing) {
		return fmt.Sprintf("%v: no pglock tables in schema %q: run `pglock migrate up`, call migrations.Up, or name the right schema", e.Kind, e.Name)
	}
	remedy := "deploy a newer pglock with this program"
	if errors.Is(e.Kind, ErrOutdated) {
		remedy = "run `pglock migrate up` or call migrations.Up"
	}
	return fmt.Sprintf("%v: %q is at version %d and this program needs %d: %s", e.Kind, e.Name, e.Found, e.Want, remedy)
}

func (e *Error) Unwrap() []error { return errs.Causes(ErrSchema, e.Kind, e.Cause) }

// Check returns an *Error unless found, the version of the named schema in the database, is the one
// that this module needs.
func Check(name string, found int) error {
	switch {
	case found < Version:
		return &Error{Kind: ErrOutdated, Name: name, Found: found, Want: Version}
	case found > Version:
		return &Error{Kind: ErrNewer, Name: name, Found: found, Want: Version}
	}
	return nil
}
