package runner

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"

	"github.com/golang-migrate/migrate/v4/source"
	"github.com/golang-migrate/migrate/v4/source/iofs"

	"github.com/pglock/pglock-go/internal/errs"
)

// Source opens the migrations of a service, as one of golang-migrate's sources, which the caller
// closes. Files is a Source of embedded files; for another one write
//
//	func() (source.Driver, error) { return source.Open(url) }
type Source func() (source.Driver, error)

// Files returns the Source of the files in a directory of fsys, "." for fsys itself. The files have
// golang-migrate's names, such as 0001_create_users.up.sql.
func Files(fsys fs.FS, dir string) Source {
	return func() (source.Driver, error) { return iofs.New(fsys, dir) }
}

// files are the migrations of a source, in order.
type files struct {
	driver   source.Driver
	versions []uint
}

// migration is one file of a source.
type migration struct {
	version uint
	name    string // empty if no file leads up to the version
	sql     string
}

func openSource(src Source) (*files, error) {
	if src == nil {
		return nil, errs.InvalidOption("runner", "Run: the source is nil")
	}
	driver, err := src()
	if err != nil {
		return nil, errs.Errorf("runner: open source: %w", err)
	}
	f := &files{driver: driver}
	version, err := driver.First()
	for ; err == nil; version, err = driver.Next(version) {
		f.versions = append(f.versions, version)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, errs.Join(errs.Errorf("runner: read source: %w", err), driver.Close())
	}
	if len(f.versions) == 0 {
		return nil, errs.Join(ErrNoMigrations, driver.Close())
	}
	return f, nil
}

func (f *files) last() uint { return f.versions[len(f.versions)-1] }

// read returns the migration up to a version. Without a file for it the SQL is empty, as in
// golang-migrate.
func (f *files) read(version uint) (m migration, err error) {
	m.version = version
	body, name, err := f.driver.ReadUp(version)
	if errors.Is(err, fs.ErrNotExist) {
		return m, nil
	}
	if err != nil {
		return m, errs.Errorf("runner: read source: version %d: %w", version, err)
	}
	defer func() { err = errs.Join(err, body.Close()) }()
	text, err := io.ReadAll(body)
	m.name, m.sql = name, string(text)
	return m, err
}

// before returns the version before the given one, noVersion for the first.
func (f *files) before(version int) int {
	i, _ := slices.BinarySearch(f.versions, uint(version))
	if i == 0 {
		return noVersion
	}
	return int(f.versions[i-1])
}

// check returns an error if a database at that version can't be migrated from this source.
func (f *files) check(t versionTable, at tableState) error {
	switch {
	case at.dirty:
		return fmt.Errorf("%w: %s: migration %d was begun, and its end not recorded: its process died, or lost its lock and may still run it: %s",
			ErrDirty, t.quoted, at.version, dirtyRemedy(t.quoted, at.version, f.before(at.version)))
	case at.version == noVersion:
		return nil
	case !slices.Contains(f.versions, uint(at.version)):
		return f.unknown(t, at)
	}
	m, err := f.read(uint(at.version))
	if err == nil && at.name != "" && m.name != at.name {
		err = fmt.Errorf("%w: %s is at version %d by %q, which is %q in this source: two sources need two version tables (WithVersionTable)",
			ErrOtherSource, t.quoted, at.version, at.name, m.name)
	}
	return err
}

// unknown returns the error for a version that the source does not have.
func (f *files) unknown(t versionTable, at tableState) error {
	by, remedy := "", "another program uses the same version table, or the file was removed"
	if at.name != "" {
		by = fmt.Sprintf(" by %q", at.name)
	}
	if f.newer(at) {
		remedy = "a later release has migrated it, or another program uses the same version table: if this release works with the tables of a later one, pass AllowNewer"
	}
	return fmt.Errorf("%w: %s is at version %d%s, and the source's last version is %d: %s", ErrUnknownVersion, t.quoted, at.version, by, f.last(), remedy)
}

// newer reports whether a later release can have led to the version.
func (f *files) newer(at tableState) bool { return !at.dirty && at.version > int(f.last()) }

// next returns the version after the recorded one, and false after the last.
func (f *files) next(at tableState) (uint, bool) {
	i, _ := slices.BinarySearch(f.versions, uint(at.version+1))
	if i == len(f.versions) {
		return 0, false
	}
	return f.versions[i], true
}
