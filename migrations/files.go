package migrations

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"

	"github.com/golang-migrate/migrate/v4/source"
	"github.com/golang-migrate/migrate/v4/source/iofs"
)

// Source opens a service's own migrations, one of golang-migrate's sources. Files makes one
// of embedded files; for another write func() (source.Driver, error) { return source.Open(url) }.
// Who calls it closes what it returns.
type Source func() (source.Driver, error)

// Files is the source of the files of a directory, "." for fsys itself, with golang-migrate's
// names: 0001_create_users.up.sql.
func Files(fsys fs.FS, dir string) Source {
	return func() (source.Driver, error) { return iofs.New(fsys, dir) }
}

// files are a source's migrations, in order.
type files struct {
	driver   source.Driver
	versions []uint
}

// migration is one of them.
type migration struct {
	version uint
	name    string // empty if there is no file that leads up to the version
	sql     string
}

func openFiles(src Source) (*files, error) {
	if src == nil {
		return nil, invalidOption("the source is nil")
	}
	driver, err := src()
	if err != nil {
		return nil, fmt.Errorf("migrations: source: %w", err)
	}
	f := &files{driver: driver}
	version, err := driver.First()
	for ; err == nil; version, err = driver.Next(version) {
		f.versions = append(f.versions, version)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, errors.Join(fmt.Errorf("migrations: source: %w", err), driver.Close())
	}
	if len(f.versions) == 0 {
		return nil, errors.Join(ErrNoMigrations, driver.Close())
	}
	return f, nil
}

func (f *files) close() error { return f.driver.Close() }

func (f *files) last() uint { return f.versions[len(f.versions)-1] }

// read returns the migration up to a version. Without a file for it nothing is to be done, as
// in golang-migrate.
func (f *files) read(version uint) (m migration, err error) {
	m.version = version
	body, name, err := f.driver.ReadUp(version)
	if errors.Is(err, fs.ErrNotExist) {
		return m, nil
	}
	if err != nil {
		return m, fmt.Errorf("migrations: source: version %d: %w", version, err)
	}
	defer func() { err = errors.Join(err, body.Close()) }()
	text, err := io.ReadAll(body)
	m.name, m.sql = name, string(text)
	return m, err
}

// before returns the version before that one, none for the first.
func (f *files) before(version int) int {
	last := none
	for _, v := range f.versions {
		if int(v) >= version {
			break
		}
		last = int(v)
	}
	return last
}

// check tells whether a database at that position can be migrated from this source.
func (f *files) check(r record, at position) error {
	if at.dirty {
		return &HalfwayError{Table: r.quoted, Version: at.version, Before: f.before(at.version)}
	}
	if at.version == none {
		return nil
	}
	e := &VersionError{Table: r.quoted, Version: uint(at.version), Recorded: at.name, Last: f.last(), kind: ErrUnknownVersion}
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

// next returns the version after that position, and false after the last.
func (f *files) next(at position) (uint, bool) {
	for _, v := range f.versions {
		if int(v) > at.version {
			return v, true
		}
	}
	return 0, false
}
