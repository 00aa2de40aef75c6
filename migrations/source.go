package migrations

import (
	"io"
	"strings"

	"github.com/golang-migrate/migrate/v4/source"
	"github.com/golang-migrate/migrate/v4/source/iofs"

	"github.com/pglock/pglock-go/internal/schema"
)

// schemaSource is FS for one schema: it puts a search_path in front of each
// file. It is local to the file's transaction, so a pooled connection keeps its
// own, also behind a pooler.
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
