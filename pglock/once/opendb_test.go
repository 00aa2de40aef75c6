package once_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pglock/pglock-go/pglock"
)

// TestDoWithAClientOfOpenDB: the record is written on a connection of the client.
func TestDoWithAClientOfOpenDB(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	db := stdlib.OpenDB(*f.pool.Config().ConnConfig)
	defer db.Close()
	db.SetMaxOpenConns(1)
	c, err := pglock.OpenDB(t.Context(), db, pglock.WithSchema(f.schema))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := c.Close(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	first, err := f.do(c, "k", nil)
	if err != nil {
		t.Fatal(err)
	}
	again, err := f.do(c, "k", nil)
	if err != nil || again != first || f.effects("k") != 1 || db.Stats().InUse != 0 {
		t.Errorf("%d, then %d, %d effects, %d connections in use: %v", first, again, f.effects("k"), db.Stats().InUse, err)
	}
}
