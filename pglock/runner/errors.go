package runner

import (
	"errors"
	"fmt"

	"github.com/pglock/pglock-go/internal/errs"
)

var (
	// ErrUnknownVersion: the source does not have the database's version. A later release has
	// migrated the database (see AllowNewer), or another program.
	ErrUnknownVersion = errors.New("runner: the source does not have the database's version")

	// ErrOtherSource: a migration of another name led to the database's version.
	ErrOtherSource = errors.New("runner: the version table belongs to another source")

	// ErrNoMigrations: the source has no migrations.
	ErrNoMigrations = errors.New("runner: the source has no migrations")

	// ErrOutOfOrder: the source has a migration below the database's version that was not applied,
	// since it was added later. The error around it names the migration. See AllowOutOfOrder.
	ErrOutOfOrder = errors.New("runner: a migration was added below the database's version")

	// ErrChanged: the file of an applied migration has changed, so databases that are migrated now
	// differ from those that were migrated before. See AllowChanged.
	ErrChanged = errors.New("runner: an applied migration has changed")

	// ErrDirty: a migration was begun, and its end not recorded. The error around
	// it says how to continue.
	ErrDirty = errors.New("runner: dirty version")
)

// MigrationError reports which migration failed, and what is left of it.
type MigrationError struct {
	Version uint
	Name    string // from the name of its file
	Dirty   bool   // parts of it may have been applied, and the version table says so
	Unknown bool   // the server could not be asked what is left
	Table   string // the version table, quoted
	Before  int    // the version before, -1 for none; a higher one for a migration out of order
	Cause   error  // the server's
}

func (e *MigrationError) Error() string {
	s := fmt.Sprintf("runner: migration failed: %d_%s: %s", e.Version, e.Name, errs.Reason(e.Cause))
	switch {
	case e.Unknown:
		return s + ": the server could not be asked whether anything of it is left: read the version in " + e.Table
	case !e.Dirty:
		return s + ": it was one transaction, and nothing of it is left"
	}
	return s + ": it was not one transaction: " + dirtyRemedy(e.Table, int(e.Version), e.Before)
}

// Unwrap makes errors.Is find the cause, and ErrDirty if the version is dirty.
func (e *MigrationError) Unwrap() []error {
	if e.Dirty {
		return []error{ErrDirty, e.Cause}
	}
	return []error{e.Cause}
}

func dirtyRemedy(table string, version, before int) string {
	back := fmt.Sprintf("UPDATE %s SET version = %d, dirty = false", table, before)
	if before < 0 {
		back = "DELETE FROM " + table
	}
	done := fmt.Sprintf("UPDATE %s SET dirty = false WHERE version = %d", table, version)
	if before > version { // the record has the migration, and the version stays
		back = fmt.Sprintf("DELETE FROM %s WHERE version = %d; UPDATE %s SET dirty = false", recordOf(table), version, table)
		done = fmt.Sprintf("UPDATE %s SET dirty = false WHERE version = %d; UPDATE %s SET dirty = false", recordOf(table), version, table)
	}
	return fmt.Sprintf("check what was applied; if everything, run `%s`; if nothing, or after you have undone it, run `%s`", done, back)
}
