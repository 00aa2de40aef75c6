package migrations

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/schema"
)

// grantee is a role, and the function of the schema that grants it its rights.
type grantee struct{ function, role string }

// grantAll gives the roles their rights, under the lock: the server does not let two
// sessions grant on one table at once.
func grantAll(ctx context.Context, own *pgxpool.Pool, cfg config) error {
	if len(cfg.grants) == 0 {
		return nil
	}
	return locked(ctx, own, cfg, func() error {
		for _, g := range cfg.grants {
			_, err := own.Exec(ctx, "SELECT "+schema.Quote(cfg.schema)+"."+g.function+"($1::text)", g.role)
			var pg *pgconn.PgError
			if errors.As(err, &pg) && pg.Code == "42704" { // undefined_object
				return fmt.Errorf("%w: %q: %w", ErrNoRole, g.role, err)
			}
			if err != nil {
				return cfg.explain(err)
			}
		}
		return nil
	})
}
