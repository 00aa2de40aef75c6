package runner

import (
	"errors"
	"fmt"

	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/internal/errs"
)

var (
	// ErrInvalidOption: an option, or another argument, is invalid. The error names the rule.
	ErrInvalidOption = errs.ErrInvalidOption

	// ErrNotAcquired: another session or process holds the lock. The *WaitError around it names
	// the holder.
	ErrNotAcquired = errs.ErrNotAcquired

	// ErrTimeout: the time of WithTimeout is over.
	ErrTimeout = advisory.ErrTimeout

	// ErrLost: the lock was lost during a run. The *StoppedError around it says where the run
	// stopped.
	ErrLost = errs.ErrLost

	// ErrPooled: a session's lock does not work behind a pooler in transaction mode. Use WithLease.
	ErrPooled = advisory.ErrPooled

	// ErrUnknownVersion: the source does not have the database's version. A later release has
	// migrated the database (see AllowNewer), or another program.
	ErrUnknownVersion = errors.New("runner: the source does not have the database's version")

	// ErrOtherSource: a migration of another name led to the database's version.
	ErrOtherSource = errors.New("runner: the version table belongs to another source")

	// ErrNoMigrations: the source has no migrations.
	ErrNoMigrations = errors.New("runner: the source has no migrations")

	// ErrMigration: the SQL of a migration failed. The *MigrationError around it says which one.
	ErrMigration = errors.New("runner: migration failed")

	// ErrDirty: a migration was begun, and its end not recorded. The *DirtyError or
	// *MigrationError around it says how to continue.
	ErrDirty = errors.New("runner: dirty version")
)

// MigrationError reports which migration failed, and what is left of it.
type MigrationError struct {
	Version uint
	Name    string // from the name of its file
	Dirty   bool   // parts of it may have been applied, and the version table says so
	Unknown bool   // the server could not be asked what is left
	Table   string // the version table, quoted
	Before  int    // the version before, -1 for none
	Cause   error  // the server's
}

func (e *MigrationError) Error() string {
	s := fmt.Sprintf("%v: %d_%s: %s", ErrMigration, e.Version, e.Name, errs.Reason(e.Cause))
	switch {
	case e.Unknown:
		return s + ": the server could not be asked whether anything of it is left: read the version in " + e.Table
	case !e.Dirty:
		return s + ": it was one transaction, and nothing of it is left"
	}
	return s + ": it was not one transaction: " + dirtyRemedy(e.Table, int(e.Version), e.Before)
}

// Unwrap makes errors.Is find ErrMigration, the cause, and ErrDirty if the version is dirty.
func (e *MigrationError) Unwrap() []error {
	if e.Dirty {
		return []error{ErrMigration, ErrDirty, e.Cause}
	}
	return []error{ErrMigration, e.Cause}
}

// DirtyError reports that another run began a migration and did not record its end.
type DirtyError struct {
	Table   string // the version table, quoted
	Version int
	Before  int // the version before in this source, -1 for none
}

func (e *DirtyError) Error() string {
	return fmt.Sprintf("%v: %s: migration %d was begun, and its end not recorded: its process died, or lost its lock and may still run it: %s",
		ErrDirty, e.Table, e.Version, dirtyRemedy(e.Table, e.Version, e.Before))
}

// Unwrap makes errors.Is find ErrDirty.
func (e *DirtyError) Unwrap() error { return ErrDirty }

// dirtyRemedy says what a person can do about a dirty version.
func dirtyRemedy(table string, version, before int) string {
	back := fmt.Sprintf("UPDATE %s SET version = %d, dirty = false", table, before)
	if before < 0 {
		back = "DELETE FROM " + table
	}
	return fmt.Sprintf("check what was applied; if everything, run `UPDATE %s SET dirty = false WHERE version = %d`; if nothing, or after you have undone it, run `%s`",
		table, version, back)
}

// VersionError reports that a database was not migrated from this source. errors.Is finds
// ErrUnknownVersion or ErrOtherSource.
type VersionError struct {
	Table    string // the version table, quoted
	Version  uint   // the database's
	Recorded string // the name of the migration that led to it, if known
	Name     string // the source's name for that version, if it has one
	Last     uint   // the source's last version
	kind     error
}

func (e *VersionError) Error() string {
	if errors.Is(e.kind, ErrOtherSource) {
		return fmt.Sprintf("%v: %s is at version %d by %q, which is %q in this source: two sources need two version tables (WithVersionTable)",
			e.kind, e.Table, e.Version, e.Recorded, e.Name)
	}
	by := ""
	if e.Recorded != "" {
		by = fmt.Sprintf(" by %q", e.Recorded)
	}
	s := fmt.Sprintf("%v: %s is at version %d%s, and the source's last version is %d", e.kind, e.Table, e.Version, by, e.Last)
	if !e.newer() {
		return s + ": another program uses the same version table, or the file was removed"
	}
	return s + ": a later release has migrated it, or another program uses the same version table: if this release works with the tables of a later one, pass AllowNewer"
}

// newer reports whether a later release can have led to the version.
func (e *VersionError) newer() bool {
	return errors.Is(e.kind, ErrUnknownVersion) && e.Version > e.Last
}

// Unwrap makes errors.Is find ErrUnknownVersion or ErrOtherSource.
func (e *VersionError) Unwrap() error { return e.kind }

// StoppedError reports that a run lost its lock and stopped before its last migration.
type StoppedError struct {
	Lock    string
	Version int   // what the version table says, -1 for none
	Cause   error // wraps ErrLost
}

func (e *StoppedError) Error() string {
	return fmt.Sprintf("runner: lost lock %q: stopped at version %d, before the next migration: %s", e.Lock, e.Version, errs.Reason(e.Cause))
}

// Unwrap makes errors.Is find ErrLost.
func (e *StoppedError) Unwrap() error { return e.Cause }
