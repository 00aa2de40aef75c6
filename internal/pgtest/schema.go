package pgtest

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/migrations"
)

// Schema creates a schema with everything that the package needs in it, and returns its name. It is dropped on
// cleanup.
func Schema(tb testing.TB, pool *pgxpool.Pool) string {
	tb.Helper()
	name := SchemaName(tb)
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
	defer cancel()
	if err := migrations.Up(ctx, pool, migrations.WithSchema(name)); err != nil {
		tb.Fatalf("pgtest: migrate %q: %v", name, err)
	}
	return name
}
