package migrations

import (
	"context"
	"embed"
	"errors"
	"time"

	"github.com/golang-migrate/migrate/v4"
	migratepgx "github.com/golang-migrate/migrate/v4/database/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/schema"
)

// FS holds the migrations as plain SQL, 0001_name.up.sql and 0001_name.down.sql, so that another
// tool can run them. Each file must run in one transaction, with search_path set to the schema of
// the tables.
//
//go:embed *.sql
var FS embed.FS

// versionTable is golang-migrate's record. Its name is not schema_migrations, because the schema
// may also hold the application's own version table.
const versionTable = "pglock_migrations"

// Up creates the schema if it is missing, and migrates its tables to the version that this module
// needs. Any number of processes may call it at once: one migrates, the others wait and return nil.
// If the tables are up to date, Up returns nil without a lock, and needs no right except to read
// the version.
//
// With WithUser, WithWriter or WithOwner, each call then grants the rights, which needs the lock
// and the right to grant. WithReport reports what has changed.
//
// ctx bounds the wait for the lock. A migration that has begun is not cancelled: each is one short
// transaction.
//
// The error is ErrPrivilege (a *PrivilegeError, which names the missing right), ErrDirty, ErrNewer,
// ErrNoRole, ErrInvalidOption, ErrInvalidSchema or the server's. After an error the tables are as
// they were before the migration that failed.
func Up(ctx context.Context, pool *pgxpool.Pool, opts ...Option) error {
	return run(ctx, pool, opts, task{
		done:   func(s state) bool { return s.version == schema.Version },
		apply:  stepTo(schema.Version),
		finish: grantAll,
	})
}

// Down removes pglock's tables with everything in them, held locks included: stop their holders
// first. It leaves the schema itself, and golang-migrate's version table in it. Without tables it
// returns nil.
//
// ctx bounds the wait for the lock. The errors are those of Up.
func Down(ctx context.Context, pool *pgxpool.Pool, opts ...Option) error {
	return run(ctx, pool, opts, task{
		done:  func(s state) bool { return s.version == 0 },
		apply: stepTo(0),
	})
}

// Force records that the schema is at version, 0 for no tables, and clean. It runs no migration.
// Use it after ErrDirty, when a person has checked the tables. A version that this module does not
// have is ErrNoVersion.
func Force(ctx context.Context, pool *pgxpool.Pool, version int, opts ...Option) error {
	if version < 0 || version > schema.Version {
		return errs.Errorf("%w: Force: version %d: must be from 0 to %d", ErrNoVersion, version, schema.Version)
	}
	recorded := version
	if version == 0 {
		recorded = -1 // golang-migrate's number for no version
	}
	return run(ctx, pool, opts, task{
		done:  func(state) bool { return false },
		apply: func(m *migrate.Migrate) error { return m.Force(recorded) },
	})
}

// Version returns the version of the schema, 0 if there are no tables. It needs no right except to
// read. If a migration did not finish, Version returns its version and an error that wraps
// ErrDirty.
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
		return s.version, s.dirtyError(cfg, nil)
	}
	return s.version, nil
}

// task is what a call does to the schema.
type task struct {
	done   func(state) bool // no migration is needed
	apply  func(*migrate.Migrate) error
	finish func(ctx context.Context, own *pgxpool.Pool, cfg config) error // always called; may be nil
}

// run performs the task under the lock. It needs no lock if the task is done.
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
		if err := withLock(ctx, own, cfg, func() error { return migrateSchema(ctx, own, cfg, t.apply) }); err != nil {
			return err
		}
	}
	if t.finish == nil {
		return nil
	}
	return t.finish(ctx, own, cfg)
}

// migrateSchema lets golang-migrate apply the migrations, on a connection of own.
func migrateSchema(ctx context.Context, own *pgxpool.Pool, cfg config, apply func(*migrate.Migrate) error) error {
	before, err := readState(ctx, own, cfg)
	if err != nil {
		return err
	}
	if !before.schemaExists {
		if _, err := own.Exec(ctx, "CREATE SCHEMA "+schema.Quote(cfg.schema)); err != nil {
			return cfg.explain(err)
		}
	}
	files, err := newSource(cfg.schema)
	if err != nil {
		return errs.Errorf("migrations: %w", err)
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
		return errs.Join(cfg.explain(err), driver.Close())
	}
	err = apply(m)
	if errors.Is(err, migrate.ErrNoChange) {
		err = nil
	}
	sourceErr, driverErr := m.Close() // returns the connection to own
	if err != nil {
		err = explainFailure(ctx, own, cfg, err)
	} else {
		err = report(ctx, own, cfg, before)
	}
	return errs.Join(err, sourceErr, driverErr)
}

// report reports what has changed since before. The lock is still held, so this call has changed
// it.
func report(ctx context.Context, own *pgxpool.Pool, cfg config, before state) error {
	if cfg.report == nil {
		return nil
	}
	after, err := readState(ctx, own, cfg)
	if err == nil && after.version != before.version {
		cfg.report(before.version, after.version)
	}
	return err
}

// explainFailure returns a *DirtyError if the failure has left a dirty version.
func explainFailure(ctx context.Context, own *pgxpool.Pool, cfg config, failure error) error {
	failure = cfg.explain(failure)
	s, err := readState(ctx, own, cfg)
	switch {
	case err != nil || !s.dirty:
		return failure
	case errors.Is(failure, ErrDirty): // an earlier call left it
		return s.dirtyError(cfg, nil)
	}
	return s.dirtyError(cfg, failure)
}

// ownPool opens a pool of two connections, one that holds the lock and one that migrates, so that a
// caller's pool that is small or busy can't block the call.
func ownPool(ctx context.Context, pool *pgxpool.Pool) (*pgxpool.Pool, error) {
	c := pool.Config()
	c.MaxConns, c.MinConns, c.MinIdleConns = 2, 0, 0
	c.MaxConnIdleTime = time.Minute
	own, err := pgxpool.NewWithConfig(ctx, c)
	if err != nil {
		return nil, errs.Errorf("migrations: %w", err)
	}
	return own, nil
}
