package migrations

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"time"

	"github.com/golang-migrate/migrate/v4"
	migratepgx "github.com/golang-migrate/migrate/v4/database/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pglock/pglock-go/internal/schema"
)

// FS holds the migrations as plain SQL, 0001_name.up.sql and 0001_name.down.sql,
// for those who run them with another tool. Each file is one transaction and
// expects search_path to be the schema that shall hold the tables.
//
//go:embed *.sql
var FS embed.FS

// versionTable is golang-migrate's record. It is not called schema_migrations,
// so that it never meets the application's own in a shared schema.
const versionTable = "pglock_migrations"

// Up creates the schema if it is missing and brings its tables to the version
// this module needs. Any number of processes may call it at once: one applies,
// the others wait for it and return nil. If the tables are up to date it
// returns nil at once, without a lock and without any right to change them.
//
// ctx bounds the waiting. Once a migration has begun it is carried out: each is
// one transaction, and small.
//
// With WithUser or WithWriter it then grants rights, each time: that takes the lock, and
// the right to grant.
//
// It fails with ErrPrivilege (and names the right that is missing), ErrDirty,
// ErrNewer, ErrNoRole, ErrInvalidOption or ErrInvalidSchema. After a failure the tables
// are as they were before the migration that failed.
func Up(ctx context.Context, pool *pgxpool.Pool, opts ...Option) error {
	return run(ctx, pool, opts, task{
		done:   func(s state) bool { return s.version == schema.Version },
		apply:  allTheWayUp,
		finish: grantAll,
	})
}

// Down removes pglock's tables with everything in them, also locks that are
// held: stop their holders first. The schema itself and golang-migrate's
// version table in it stay. Without tables it returns nil.
//
// ctx bounds the waiting for others that migrate. The errors are those of Up.
func Down(ctx context.Context, pool *pgxpool.Pool, opts ...Option) error {
	return run(ctx, pool, opts, task{
		done:  func(s state) bool { return s.version == 0 },
		apply: allTheWayDown,
	})
}

// Force records that the schema is at version, 0 for "no tables", and clean. It
// runs no migration. It is the way out of ErrDirty, after a person has looked. A
// version that this module doesn't have is ErrNoVersion.
func Force(ctx context.Context, pool *pgxpool.Pool, version int, opts ...Option) error {
	if version < 0 || version > schema.Version {
		return fmt.Errorf("%w: %d, they go from 0 to %d", ErrNoVersion, version, schema.Version)
	}
	recorded := version
	if version == 0 {
		recorded = -1 // golang-migrate's word for none
	}
	return run(ctx, pool, opts, task{
		done:  func(state) bool { return false },
		apply: func(m *migrate.Migrate) error { return m.Force(recorded) },
	})
}

// Version returns the version that the schema is at, 0 if there are no tables.
// It needs no right but to read. A migration that stopped half-way is an
// error that wraps ErrDirty, returned with its version.
func Version(ctx context.Context, pool *pgxpool.Pool, opts ...Option) (int, error) {
	cfg, err := newConfig(opts)
	if err != nil {
		return 0, err
	}
	s, err := readState(ctx, pool, cfg)
	if err != nil {
		return 0, err
	}
	if s.dirty {
		return s.version, &DirtyError{Schema: cfg.schema, Version: s.version}
	}
	return s.version, nil
}

// task is what a call does to the schema.
type task struct {
	done   func(state) bool // nothing is to be applied
	apply  func(*migrate.Migrate) error
	finish func(ctx context.Context, own *pgxpool.Pool, cfg config) error // in any case; may be nil
}

// run brings the schema to where the task is done, under the lock.
func run(ctx context.Context, pool *pgxpool.Pool, opts []Option, t task) error {
	cfg, err := newConfig(opts)
	if err != nil {
		return err
	}
	own, err := ownPool(ctx, pool)
	if err != nil {
		return err
	}
	defer own.Close()

	s, err := readState(ctx, own, cfg)
	if err != nil {
		return err
	}
	cfg.role = s.role
	if !t.done(s) || s.dirty {
		if err := s.checkRights(cfg); err != nil {
			return err
		}
		if err := locked(ctx, own, cfg, func() error { return migrateSchema(ctx, own, cfg, t.apply) }); err != nil {
			return err
		}
	}
	if t.finish == nil {
		return nil
	}
	return t.finish(ctx, own, cfg)
}

// migrateSchema hands the work to golang-migrate, on a connection of own.
func migrateSchema(ctx context.Context, own *pgxpool.Pool, cfg config, apply func(*migrate.Migrate) error) error {
	if s, err := readState(ctx, own, cfg); err != nil {
		return err
	} else if !s.schemaExists {
		if _, err := own.Exec(ctx, "CREATE SCHEMA "+schema.Quote(cfg.schema)); err != nil {
			return cfg.explain(err)
		}
	}
	files, err := newSource(cfg.schema)
	if err != nil {
		return fmt.Errorf("migrations: %w", err)
	}
	driver, err := migratepgx.WithInstance(stdlib.OpenDBFromPool(own), &migratepgx.Config{
		SchemaName:      cfg.schema,
		MigrationsTable: versionTable,
	})
	if err != nil {
		return cfg.explain(err)
	}
	m, err := migrate.NewWithInstance("embedded", files, "pgx5", driver)
	if err != nil {
		return errors.Join(cfg.explain(err), driver.Close())
	}
	err = apply(m)
	if errors.Is(err, migrate.ErrNoChange) {
		err = nil
	}
	sourceErr, driverErr := m.Close() // which returns its connection
	if err != nil {
		err = explainFailure(ctx, own, cfg, err)
	}
	return errors.Join(err, sourceErr, driverErr)
}

// explainFailure looks whether the failure left the version dirty.
func explainFailure(ctx context.Context, own *pgxpool.Pool, cfg config, failure error) error {
	failure = cfg.explain(failure)
	if s, err := readState(ctx, own, cfg); err == nil && s.dirty && !errors.Is(failure, ErrDirty) {
		return &DirtyError{Schema: cfg.schema, Version: s.version, Cause: failure}
	}
	return failure
}

// ownPool opens two connections beside the caller's pool, one that holds the
// lock and one that migrates: a pool that is small or busy can't block us.
func ownPool(ctx context.Context, pool *pgxpool.Pool) (*pgxpool.Pool, error) {
	c := pool.Config()
	c.MaxConns, c.MinConns, c.MinIdleConns = 2, 0, 0
	c.MaxConnIdleTime = time.Minute
	own, err := pgxpool.NewWithConfig(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("migrations: %w", err)
	}
	return own, nil
}
