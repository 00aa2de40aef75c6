package runner

import (
	"errors"
	"io"
	"io/fs"
	"slices"

	"github.com/golang-migrate/migrate/v4/source"
	"github.com/golang-migrate/migrate/v4/source/iofs"

	"github.com/pglock/pglock-go/internal/errs"
)

// Source opens the migrations of a service: one of golang-migrate's sources. The caller closes what
// it returns. Files is a Source of embedded files. For another one write
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

func (f *files) close() error { return f.driver.Close() }

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
	last := noVersion
	for _, v := range f.versions {
		if int(v) >= version {
			break
		}
		last = int(v)
	}
	return last
}

// check returns an error if a database at that version can't be migrated from this source.
func (f *files) check(t versionTable, at tableState) error {
	if at.dirty {
		return &DirtyError{Table: t.quoted, Version: at.version, Before: f.before(at.version)}
	}
	if at.version == noVersion {
		return nil
	}
	e := &VersionError{Table: t.quoted, Version: uint(at.version), Recorded: at.name, Last: f.last(), kind: ErrUnknownVersion}
	if !slices.Contains(f.versions, e.Version) {
		return e
	}
	m, err := f.read(e.Version)
	if err != nil {
		return err
	}
	if at.name != "" && m.name != at.name {
		e.Name, e.kind = m.name, ErrOtherSource
		return e
	}
	return nil
}

// next returns the version after the recorded one, and false after the last.
func (f *files) next(at tableState) (uint, bool) {
	for _, v := range f.versions {
		if int(v) > at.version {
			return v, true
		}
	}
	return 0, false
}
