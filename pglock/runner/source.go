package runner

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"

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

type files struct {
	driver   source.Driver
	versions []uint
	all      map[uint]migration
}

type migration struct {
	version uint
	name    string // empty if no file leads up to the version
	sql     string
	sum     string // its checksum
}

// String returns the name as that of the file begins.
func (m migration) String() string { return fmt.Sprintf("%d_%s", m.version, m.name) }

func (m migration) empty() bool { return strings.TrimSpace(m.sql) == "" }

// checksum does not depend on the line endings, which git may convert.
func checksum(sql string) string {
	return fmt.Sprintf("%x", sha256.Sum256([]byte(strings.ReplaceAll(sql, "\r\n", "\n"))))
}

func openSource(src Source) (*files, error) {
	if src == nil {
		return nil, errs.InvalidOption("runner", "Run: the source is nil")
	}
	driver, err := src()
	if err != nil {
		return nil, errs.Errorf("runner: open source: %w", err)
	}
	f := &files{driver: driver, all: map[uint]migration{}}
	version, err := driver.First()
	for ; err == nil; version, err = driver.Next(version) {
		m, err := read(driver, version)
		if err != nil {
			return nil, errs.Join(errs.Errorf("runner: read source: version %d: %w", version, err), driver.Close())
		}
		f.versions, f.all[version] = append(f.versions, version), m
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

// read returns the migration up to a version. Without a file for it the SQL is empty.
func read(driver source.Driver, version uint) (m migration, err error) {
	body, name, err := driver.ReadUp(version)
	if errors.Is(err, fs.ErrNotExist) {
		return migration{version: version, sum: checksum("")}, nil
	}
	if err != nil {
		return m, err
	}
	defer func() { err = errs.Join(err, body.Close()) }()
	text, err := io.ReadAll(body)
	return migration{version, name, string(text), checksum(string(text))}, err
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
		before := at.version
		if at.begun == at.version {
			before = f.before(at.version)
		}
		return fmt.Errorf("%w: %s: migration %d was begun, and its end not recorded: its process died, or lost its lock and may still run it: %s",
			ErrDirty, t.quoted, at.begun, dirtyRemedy(t.quoted, at.begun, before))
	case at.version == noVersion:
		return nil
	case !slices.Contains(f.versions, uint(at.version)):
		return f.unknown(t, at)
	}
	m, was := f.all[uint(at.version)], at.applied[uint(at.version)]
	if was.name != "" && was.name != m.name && was.sum != m.sum {
		return fmt.Errorf("%w: %s is at version %d by %q, which is %q in this source: two sources need two version tables (WithVersionTable)",
			ErrOtherSource, t.quoted, at.version, was.name, m.name)
	}
	return nil
}

func (f *files) unknown(t versionTable, at tableState) error {
	by, remedy := "", "another program uses the same version table, or the file was removed"
	if was := at.applied[uint(at.version)]; was.name != "" {
		by = fmt.Sprintf(" by %q", was.name)
	}
	if f.newer(at) {
		remedy = "a later release has migrated it, or another program uses the same version table: if this release works with the tables of a later one, pass AllowNewer"
	}
	return fmt.Errorf("%w: %s is at version %d%s, and the source's last version is %d: %s", ErrUnknownVersion, t.quoted, at.version, by, f.last(), remedy)
}

// newer reports whether a later release can have led to the version.
func (f *files) newer(at tableState) bool { return !at.dirty && at.version > int(f.last()) }

type plan struct {
	record []migration // applied before the first run or by another tool, so the record has no row for them
	run    []migration // in the order of versions, so those below the database's are first
}

func (f *files) compare(c *config, t versionTable, at tableState) (d plan, err error) {
	var changed, late, rows []string
	for _, v := range f.versions {
		m := f.all[v]
		switch row, ok := at.applied[v]; {
		case int(v) > at.version:
			d.run = append(d.run, m)
		case ok && row.sum != "" && row.sum != m.sum && !slices.Contains(c.changed, v):
			changed = append(changed, fmt.Sprintf("%s (applied as %q)", m, row.name))
		case ok: // by this file, or a change of it is allowed
		case int(v) > at.mark: // nothing after it is recorded, so a tool that keeps the order ran it
			d.record = append(d.record, m)
		case !m.empty():
			d.run, late, rows = append(d.run, m), append(late, m.String()), append(rows, fmt.Sprintf("(%d)", v))
		}
	}
	switch {
	case changed != nil:
		return d, fmt.Errorf("%w: %s: %s: put the change into a new migration, or pass AllowChanged for a version whose change has no effect",
			ErrChanged, t.quoted, strings.Join(changed, ", "))
	case late != nil && !c.outOfOrder:
		return d, fmt.Errorf("%w: %s is at version %d: not applied: %s: give it a higher version, or pass AllowOutOfOrder to run it now; if another tool has applied it, run `INSERT INTO %s (version) VALUES %s`",
			ErrOutOfOrder, t.quoted, at.version, strings.Join(late, ", "), recordOf(t.quoted), strings.Join(rows, ", "))
	}
	return d, nil
}
