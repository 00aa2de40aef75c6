package pgtest

import (
	"context"
	"crypto/sha256"
	"fmt"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// rolePassword is that of every role that tests create.
const rolePassword = "poor"

// roles holds the ones that this process has created.
var roles sync.Map

// UserPool returns a pool like the given one, whose role may do with the schema's locks what
// migrations.WithUser grants, and nothing else. The role is dropped on cleanup.
func UserPool(tb testing.TB, pool *pgxpool.Pool, schema string) *pgxpool.Pool {
	tb.Helper()
	return poolAs(tb, pool, schema, "user")
}

// WriterPool is UserPool for what migrations.WithWriter grants.
func WriterPool(tb testing.TB, pool *pgxpool.Pool, schema string) *pgxpool.Pool {
	tb.Helper()
	return poolAs(tb, pool, schema, "writer")
}

// RoleOf returns the name of the role that UserPool or WriterPool connects as.
func RoleOf(pool *pgxpool.Pool) string { return pool.Config().ConnConfig.User }

// poolAs gives the role rights by the schema's function grant_user or grant_writer.
func poolAs(tb testing.TB, pool *pgxpool.Pool, schema, kind string) *pgxpool.Pool {
	tb.Helper()
	c := pool.Config()
	role := fmt.Sprintf("%s %.20x", kind, sha256.Sum256([]byte(schema)))
	if _, there := roles.LoadOrStore(role, true); !there {
		createRole(tb, c.ConnConfig, role, schema, kind)
	}
	c.ConnConfig.User, c.ConnConfig.Password = role, rolePassword
	as, err := pgxpool.NewWithConfig(context.Background(), c)
	if err != nil {
		tb.Fatalf("pgtest: %v", err)
	}
	tb.Cleanup(as.Close)
	return as
}

func createRole(tb testing.TB, admin *pgx.ConnConfig, role, schema, kind string) {
	tb.Helper()
	admin = admin.Copy()
	quoted := pgx.Identifier{role}.Sanitize()
	err := execAs(admin, "CREATE ROLE "+quoted+" LOGIN PASSWORD '"+rolePassword+"'",
		fmt.Sprintf("SELECT %s.grant_%s('%s')", pgx.Identifier{schema}.Sanitize(), kind, role))
	if err != nil {
		tb.Fatalf("pgtest: role %q: %v", role, err)
	}
	tb.Cleanup(func() {
		if err := execAs(admin, "DROP OWNED BY "+quoted, "DROP ROLE "+quoted); err != nil {
			tb.Logf("pgtest: drop role %q: %v", role, err) // its server may be gone by then
		}
	})
}

// execAs runs statements on a connection of its own.
func execAs(config *pgx.ConnConfig, statements ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
	defer cancel()
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return err
	}
	defer conn.Close(context.Background())
	for _, s := range statements {
		if _, err := conn.Exec(ctx, s); err != nil {
			return err
		}
	}
	return nil
}
