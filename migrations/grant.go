package migrations

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/pgtx"
	"github.com/pglock/pglock-go/internal/schema"
)

// grant is a role, and the function of the schema that grants it rights.
type grant struct{ function, role string }

// statement returns the SQL of the grant, for an owner of the tables to run.
func (c config) statement(g grant) string {
	return fmt.Sprintf("SELECT %s.%s(%s)", schema.Quote(c.schema), g.function, schema.Literal(g.role))
}

// closeAll takes functions away from PUBLIC: pg_restore leaves them open if a role is missing to
// which they were granted, because it runs all grants and revocations of a function in one
// transaction.
func closeAll(ctx context.Context, own *pgxpool.Pool, cfg config, functions []string) error {
	if functions == nil {
		return nil
	}
	_, err := own.Exec(ctx, "REVOKE EXECUTE ON FUNCTION "+strings.Join(functions, ", ")+" FROM PUBLIC")
	return cfg.explain(err)
}

// grantAll grants the roles their rights. The caller holds the lock, because the server refuses two
// sessions that change the rights of one table at once.
func grantAll(ctx context.Context, own *pgxpool.Pool, cfg config) error {
	for _, g := range cfg.grants {
		_, err := own.Exec(ctx, "SELECT "+schema.Quote(cfg.schema)+"."+g.function+"($1::pg_catalog.text)", g.role)
		if pgtx.SQLState(err) == pgtx.UndefinedObject {
			return errs.Errorf("%w: %q: %w", ErrNoRole, g.role, err)
		}
		if err != nil {
			return cfg.explainWith(err, cfg.statement(g))
		}
	}
	return nil
}
