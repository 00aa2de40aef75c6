package migrations

import (
	"errors"
	"io"
	"strings"

	"github.com/golang-migrate/migrate/v4"
	"github.com/golang-migrate/migrate/v4/source"
	"github.com/golang-migrate/migrate/v4/source/iofs"

	"github.com/pglock/pglock-go/internal/schema"
)

// schemaSource is FS for one schema: it sets search_path at the beginning of each file. The setting
// is local to the file's transaction, so the connection keeps its own, also behind a pooler.
type schemaSource struct {
	source.Driver
	preamble string
}

func newSource(name string) (*schemaSource, error) {
	files, err := iofs.New(FS, ".")
	if err != nil {
		return nil, err
	}
	return &schemaSource{files, "SET LOCAL search_path TO " + schema.Quote(name) + ", pg_temp;\n"}, nil
}

func (s *schemaSource) ReadUp(version uint) (io.ReadCloser, string, error) {
	return s.prepend(s.Driver.ReadUp(version))
}

func (s *schemaSource) ReadDown(version uint) (io.ReadCloser, string, error) {
	return s.prepend(s.Driver.ReadDown(version))
}

func (s *schemaSource) prepend(file io.ReadCloser, name string, err error) (io.ReadCloser, string, error) {
	if err != nil {
		return nil, "", err
	}
	return struct {
		io.Reader
		io.Closer
	}{io.MultiReader(strings.NewReader(s.preamble), file), file}, name, nil
}

// stepTo returns a function that applies one migration after the other until the schema is at the
// target. golang-migrate's own Up and Down read the next file ahead, and leak the goroutine that
// reads it if the migration before fails.
func stepTo(target int) func(*migrate.Migrate) error {
	return func(m *migrate.Migrate) error {
		for {
			at, dirty, err := m.Version()
			if err != nil && !errors.Is(err, migrate.ErrNilVersion) {
				return err
			}
			step := 1
			switch {
			case dirty:
				return migrate.ErrDirty{Version: int(at)}
			case int(at) == target:
				return nil
			case int(at) > target:
				step = -1
			}
			if err := m.Steps(step); err != nil {
				return err
			}
		}
	}
}
