package store

import (
	"errors"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock/pglock-go/internal/errs"
)

// Away reports whether err, explained, means that the server can't be reached or does not answer. A
// server that rejects the role, its password or the database does answer.
func Away(err error) bool {
	var pg *pgconn.PgError
	if errors.As(err, &pg) && (strings.HasPrefix(pg.Code, "28") || strings.HasPrefix(pg.Code, "3D")) {
		return false
	}
	return errors.Is(err, errs.ErrUnavailable)
}
