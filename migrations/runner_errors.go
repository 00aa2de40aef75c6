package migrations

import (
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/internal/condition"
)

var (
	// ErrNotAcquired: somebody else holds the lock. The *WaitError around it tells who.
	ErrNotAcquired = condition.ErrNotAcquired

	// ErrTimeout: the time given by WithTimeout is over.
	ErrTimeout = advisory.ErrTimeout

	// ErrLost: the lock was lost while a run held it. The *StoppedError around it tells
	// where the run stopped.
	ErrLost = condition.ErrLost

	// ErrPooled: a session's lock does not work behind a pooler in transaction mode: use WithLease.
	ErrPooled = advisory.ErrPooled

	// ErrUnknownVersion: the database is at a version that the source does not have: it was
	// migrated by a later release, or by another program.
	ErrUnknownVersion = errors.New("migrations: the source does not have the database's version")

	// ErrOtherSource: the database's version was reached by a migration of another name.
	ErrOtherSource = errors.New("migrations: the version table belongs to another source")

	// ErrNoMigrations: the source has no migration.
	ErrNoMigrations = errors.New("migrations: the source has no migrations")

	// ErrNotPostgres: what shall be migrated is not a PostgreSQL database.
	ErrNotPostgres = errors.New("migrations: not a PostgreSQL database")

	// ErrMigration: a migration's own SQL failed. The *MigrationError around it tells which.
	ErrMigration = errors.New("migrations: a migration failed")
)

// MigrationError tells which migration failed, and what became of it.
type MigrationError struct {
	Version uint
	Name    string // as in the name of its file
	Dirty   bool   // parts of it may have been applied, and the version says so
	Unknown bool   // the server could not be asked what became of it: the version table tells
	Table   string // the version table, quoted
	Before  int    // the version before it, -1 for none
	Cause   error  // the server's
}

func (e *MigrationError) Error() string {
	s := fmt.Sprintf("%v: %d_%s: %v", ErrMigration, e.Version, e.Name, e.Cause)
	switch {
	case e.Unknown:
		return s + ": the server could not be asked whether anything of it is left: the version in " + e.Table + " tells"
	case !e.Dirty:
		return s + ": it was one transaction and left nothing"
	}
	return s + ": it was not one transaction: " + wayOut(e.Table, int(e.Version), e.Before)
}

// Unwrap makes errors.Is find ErrMigration, the cause, and ErrDirty if it is.
func (e *MigrationError) Unwrap() []error {
	if e.Dirty {
		return []error{ErrMigration, ErrDirty, e.Cause}
	}
	return []error{ErrMigration, e.Cause}
}

// HalfwayError tells that a migration was begun by somebody else and its end not recorded.
type HalfwayError struct {
	Table   string // the version table, quoted
	Version int
	Before  int // the version before it in this source, -1 for none
}

func (e *HalfwayError) Error() string {
	return fmt.Sprintf("%v: %d of %s was begun, and its end was not recorded: its process died or lost its lock, and may still be at it: %s",
		ErrDirty, e.Version, e.Table, wayOut(e.Table, e.Version, e.Before))
}

// Unwrap makes errors.Is find ErrDirty.
func (e *HalfwayError) Unwrap() error { return ErrDirty }

// wayOut is what a person does about a dirty version.
func wayOut(table string, version, before int) string {
	again := fmt.Sprintf("UPDATE %s SET version = %d, dirty = false", table, before)
	if before < 0 {
		again = "DELETE FROM " + table
	}
	return fmt.Sprintf("look what there is of it; if all, run `UPDATE %s SET dirty = false WHERE version = %d`; if nothing, or once that is undone, `%s`",
		table, version, again)
}

// VersionError tells that a source and a database do not belong together. errors.Is finds
// ErrUnknownVersion or ErrOtherSource.
type VersionError struct {
	Table    string // the version table, quoted
	Version  uint   // the database's
	Recorded string // the name of the migration that led to it, if known
	Name     string // the name that the source has for it, if any
	Last     uint   // the source's last version
	kind     error
}

func (e *VersionError) Error() string {
	if errors.Is(e.kind, ErrOtherSource) {
		return fmt.Sprintf("%v: %s is at version %d by %q, which is %q here: two sources need two version tables (WithVersionTable)",
			e.kind, e.Table, e.Version, e.Recorded, e.Name)
	}
	by := ""
	if e.Recorded != "" {
		by = fmt.Sprintf(" by %q", e.Recorded)
	}
	return fmt.Sprintf("%v: %s is at version %d%s, the source's last is %d: a later release has migrated it, or another program uses the same version table",
		e.kind, e.Table, e.Version, by, e.Last)
}

// Unwrap makes errors.Is find ErrUnknownVersion or ErrOtherSource.
func (e *VersionError) Unwrap() error { return e.kind }

// StoppedError tells that a run ended before all was done, because its lock was lost.
type StoppedError struct {
	Lock    string
	Version int   // what the version table says, -1 for none
	Dirty   bool  // the migration to Version was begun, and its end could not be recorded
	Cause   error // wraps ErrLost
}

func (e *StoppedError) Error() string {
	if e.Dirty {
		return fmt.Sprintf("migrations: lost lock %q during the migration to version %d, and could not record its end: %v", e.Lock, e.Version, e.Cause)
	}
	return fmt.Sprintf("migrations: stopped at version %d, before the next migration, because lock %q was lost: %v", e.Version, e.Lock, e.Cause)
}

// Unwrap makes errors.Is find ErrLost, and ErrDirty if it is.
func (e *StoppedError) Unwrap() []error {
	if e.Dirty {
		return []error{ErrDirty, e.Cause}
	}
	return []error{e.Cause}
}

// tableName quotes the name of a version table.
func tableName(schema, table string) string {
	return pgx.Identifier{schema, table}.Sanitize()
}
