package migrations_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/migrations"
)

// foreign is a driver that is not pgx's.
type foreign struct{}

func (foreign) Connect(context.Context) (driver.Conn, error) { return foreign{}, nil }
func (foreign) Driver() driver.Driver                        { return nil }
func (foreign) Prepare(string) (driver.Stmt, error)          { return nil, errors.ErrUnsupported }
func (foreign) Begin() (driver.Tx, error)                    { return nil, errors.ErrUnsupported }
func (foreign) Close() error                                 { return nil }

// TestUpDB: one connection of db is enough, with a configuration that only its hook completes.
func TestUpDB(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	in := migrations.WithSchema(pgtest.SchemaName(t))
	config := pool.Config().ConnConfig
	port := config.Port
	config.Port, config.Fallbacks = 1, nil
	db := stdlib.OpenDB(*config, stdlib.OptionBeforeConnect(func(_ context.Context, c *pgx.ConnConfig) error {
		c.Port = port
		return nil
	}))
	defer db.Close()
	db.SetMaxOpenConns(1)
	for range 2 { // the second does nothing
		locktest.OK(t, migrations.UpDB(t.Context(), db, in))
	}
	if v, err := migrations.Version(t.Context(), pool, in); v != schema.Version || err != nil || db.Stats().InUse != 0 {
		t.Errorf("version %d, %d connections in use, %v", v, db.Stats().InUse, err)
	}
	other := sql.OpenDB(foreign{})
	defer other.Close()
	if err := migrations.UpDB(t.Context(), other, in); !errors.Is(err, migrations.ErrDriver) {
		t.Errorf("another driver: %v", err)
	}
	_, noPool := migrations.Version(t.Context(), nil, in)
	for _, err := range []error{migrations.Up(t.Context(), nil, in), noPool} {
		if !errors.Is(err, migrations.ErrInvalidOption) {
			t.Errorf("without a pool: %v", err)
		}
	}
	if err := migrations.UpDB(t.Context(), nil, in); !errors.Is(err, migrations.ErrInvalidOption) {
		t.Errorf("no database: %v", err)
	}
}
