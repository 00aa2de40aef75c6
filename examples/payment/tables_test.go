package main

import (
	"context"
	"os"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/pglock/pglocktest"
)

// newPool returns a pool on the database of the locks. The tables are in a schema of this test, which is
// dropped at its end: no other test has the locks' schema at the same time, so its name makes a unique one.
func newPool(t *testing.T, locks *pglocktest.Locks, tables string) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(os.Getenv("PGLOCK_TEST_DATABASE_URL")) // that of pglocktest.New(t, nil)
	if err != nil {
		t.Fatal(err)
	}
	schema := "example_" + locks.Schema()
	config.ConnConfig.RuntimeParams["search_path"] = schema
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := pool.Exec(context.Background(), "DROP SCHEMA IF EXISTS "+schema+" CASCADE"); err != nil {
			t.Error(err)
		}
		pool.Close()
	})
	_, err = pool.Exec(t.Context(), "DROP SCHEMA IF EXISTS "+schema+" CASCADE; CREATE SCHEMA "+schema+"; "+tables)
	if err != nil {
		t.Fatal(err)
	}
	return pool
}
