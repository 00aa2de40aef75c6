package migrations

import (
	"context"
	"embed"
	"errors"
	"time"

	"github.com/golang-migrate/migrate/v4"
	"github.com/golang-migrate/migrate/v4/database"
	"github.com/golang-migrate/migrate/v4/source/iofs"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/pgtx"
	"github.com/pglock/pglock-go/internal/schema"
)

// FS holds the migrations as plain SQL, 0001_name.up.sql and 0001_name.down.sql, so that another
// tool can run them. Each file must run in one transaction, with search_path set to the schema of
// the tables. That tool does not make the check that Up makes (ErrUntrusted), so the schema must
// belong to the role that runs the files, and no other role may ever have had CREATE on it.
//
//go:embed *.sql
var FS embed.FS

// Up creates the schema if it is missing, and migrates its tables to the version that this module
// needs. Any number of processes may call it at once: one migrates, the others wait and return nil.
// If the tables are up to date, Up returns nil without a lock, and needs no right except to read
// the version. So it does if they are newer and still serve this module, as after a release was
// rolled back.
//
// With WithUser, WithReader, WithWriter or WithOwner, each call then grants the rights, which needs
// the lock and the right to grant, and WithReport reports what has changed.
//
// ctx bounds the wait for the lock. A migration that has begun is not cancelled: each is one short
// transaction. After five seconds of waiting, a warning in slog.Default() names the session that
// holds the lock, and so does the error if ctx ends first.
//
// The error is ErrPrivilege (a *PrivilegeError, which names the missing right), ErrUntrusted,
// ErrDirty, ErrNewer (the tables do not serve this module any more), ErrNoRole, ErrInvalidOption or
// the server's. After an error the tables are as they were before the migration that failed. If
// locks are not safe on the server, or the tables do not have the objects of their version, the
// error wraps pglock.ErrSchema, and the tables may be up to date.
func Up(ctx context.Context, pool *pgxpool.Pool, opts ...Option) error {
	return run(ctx, pool, opts, task{target: schema.Version, grants: true})
}

// Down removes pglock's tables with everything in them, held locks included: stop their holders
// first. It leaves the schema itself, and golang-migrate's version table in it, and returns nil if
// there are no tables.
//
// ctx bounds the wait for the lock. The errors are those of Up, and any newer tables are ErrNewer.
func Down(ctx context.Context, pool *pgxpool.Pool, opts ...Option) error {
	return run(ctx, pool, opts, task{target: 0})
}

// Force records that the schema is at version, and clean, and runs no migration. With 0 it empties
// the record, so the version is then derived from the tables. Use it after ErrDirty, when a person
// has checked the tables. A version that this module does not have is ErrNoVersion.
func Force(ctx context.Context, pool *pgxpool.Pool, version int, opts ...Option) error {
	if version < 0 || version > schema.Version {
		return errs.Errorf("%w: Force: version %d: must be from 0 to %d", ErrNoVersion, version, schema.Version)
	}
	return run(ctx, pool, opts, task{target: version, force: true})
}

// Version returns the version of the schema, 0 if there are no tables. It needs no right except to
// read. If a migration did not finish, Version returns its version and an error that wraps
// ErrDirty.
func Version(ctx context.Context, pool *pgxpool.Pool, opts ...Option) (int, error) {
	cfg, err := newConfig(pool, opts)
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
	target int  // version
	force  bool // record the target, and run no migration
	grants bool // also grant the rights, and check the server
}

// apply lets golang-migrate apply one migration after the other until the schema is at the target.
// golang-migrate's own Up and Down read the next file ahead, and leak the goroutine that reads it
// if the migration before fails.
func (t task) apply(m *migrate.Migrate) error {
	switch {
	case t.force && t.target == 0:
		return m.Force(database.NilVersion)
	case t.force:
		return m.Force(t.target)
	}
	for {
		at, _, err := m.Version()
		if err != nil && !errors.Is(err, migrate.ErrNilVersion) {
			return err
		}
		step := 1
		switch {
		case int(at) == t.target:
			return nil
		case int(at) > t.target:
			step = -1
		}
		if err := m.Steps(step); err != nil {
			return err
		}
	}
}

// changes reports whether the task runs migrations. Up leaves a newer schema as it is.
func (t task) changes(s state) bool { return s.version != t.target && (!t.grants || s.newer == nil) }

// run performs the task, and then checks the server.
func run(ctx context.Context, pool *pgxpool.Pool, opts []Option, t task) error {
	cfg, err := newConfig(pool, opts)
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
	migrating := t.force || s.dirty || t.changes(s)
	if err := t.perform(ctx, own, cfg, s, migrating); err != nil || !t.grants {
		return err
	}
	if !migrating && s.finding != (schema.Stranger{}) { // the check calls a function of the schema
		return nil
	}
	return checkServer(ctx, own, cfg)
}

// perform performs the task under the lock. It needs no lock if the task is done.
func (t task) perform(ctx context.Context, own *pgxpool.Pool, cfg config, s state, migrating bool) error {
	granting := t.grants && len(cfg.grants) > 0
	if migrating {
		if err := s.checkRights(cfg); err != nil {
			return err
		}
	}
	if migrating || granting {
		if err := prepare(ctx, own, cfg, s); err != nil {
			return err
		}
	}
	if migrating {
		if err := withLock(ctx, own, cfg, func() error { return migrateSchema(ctx, own, cfg, t) }); err != nil {
			return err
		}
	}
	if !t.grants {
		return nil
	}
	public, err := compare(ctx, own, cfg)
	if !s.mayCreate || s.finding != (schema.Stranger{}) {
		public = nil
	}
	if err != nil || !granting && public == nil {
		return err
	}
	return withLock(ctx, own, cfg, func() error { return errs.Join(closeAll(ctx, own, cfg, public), grantAll(ctx, own, cfg)) })
}

// compare returns an error unless the schema has the objects of this version, for which the number
// alone does not vouch, and the functions that PUBLIC may execute although the migrations forbid
// it.
func compare(ctx context.Context, own *pgxpool.Pool, cfg config) (public []string, err error) {
	found, err := schema.Objects(ctx, own, cfg.schema)
	if err != nil {
		return nil, cfg.explain(err)
	}
	differing, public := schema.Differences(found, FS, cfg.schema)
	if differing != nil {
		what, remedy := schema.Differs(cfg.schema, differing)
		return nil, schema.Unsafe(what + ": " + remedy)
	}
	return public, nil
}

// prepare creates the schema and the version table if they are missing, and returns ErrUntrusted if
// another role could run code in the schema as this one. Other processes may do the same at the
// same time. Only a role that passes can change the schema afterwards.
func prepare(ctx context.Context, own *pgxpool.Pool, cfg config, s state) error {
	if !s.schemaExists {
		if err := pgtx.Create(ctx, own, "CREATE SCHEMA IF NOT EXISTS "+schema.Quote(cfg.schema)); err != nil {
			return cfg.explain(err)
		}
		var err error // another process may have created it, and default privileges may be on it
		if s, err = readState(ctx, own, cfg); err != nil {
			return err
		}
	}
	if err := s.checkTrust(cfg); err != nil {
		return err
	}
	if s.recorded {
		return nil
	}
	return cfg.explain(pgtx.Create(ctx, own, "CREATE TABLE IF NOT EXISTS "+cfg.versionTable()+
		" (version bigint NOT NULL PRIMARY KEY, dirty boolean NOT NULL)"))
}

// migrateSchema applies the task on a connection of own, unless an earlier call has left a dirty
// version.
func migrateSchema(ctx context.Context, own *pgxpool.Pool, cfg config, t task) error {
	before, err := readState(ctx, own, cfg)
	switch {
	case err != nil:
		return err
	case before.dirty && !t.force:
		return before.dirtyError(cfg, nil)
	case before.newer != nil && !t.grants:
		return before.newer // this module does not have its migrations
	case !t.force && !t.changes(before): // another process has been faster
		return nil
	}
	files, err := iofs.New(FS, ".")
	if err != nil {
		return errs.Errorf("migrations: %w", err)
	}
	d, err := newDriver(ctx, own, cfg)
	if err != nil {
		return cfg.explain(err)
	}
	m, err := migrate.NewWithInstance("embedded", files, "pglock", d)
	if err != nil {
		return errs.Join(cfg.explain(err), d.Close())
	}
	err = t.apply(m)
	sourceErr, driverErr := m.Close()          // returns the connection to own
	after, readErr := readState(ctx, own, cfg) // under the lock still, so this call has changed it
	switch {
	case err != nil && readErr == nil && after.dirty:
		err = after.dirtyError(cfg, cfg.explain(err))
	case err != nil:
		err = cfg.explain(err)
	case readErr != nil:
		err = readErr
	case cfg.report != nil && after.version != before.version:
		cfg.report(before.version, after.version)
	}
	return errs.Join(err, sourceErr, driverErr)
}

// ownPool opens a pool of two connections, one that holds the lock and one that migrates, so that a
// caller's pool that is small or busy can't block the call.
func ownPool(ctx context.Context, pool *pgxpool.Pool) (*pgxpool.Pool, error) {
	c := pool.Config()
	c.MaxConns, c.MinConns, c.MinIdleConns = 2, 0, 0
	c.MaxConnIdleTime = time.Minute
	hook := c.AfterConnect
	c.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		if err := schema.CheckEngine(conn.PgConn()); err != nil || hook == nil {
			return err
		}
		return hook(ctx, conn)
	}
	own, err := pgxpool.NewWithConfig(ctx, c)
	if err != nil {
		return nil, errs.Errorf("migrations: %w", err)
	}
	return own, nil
}
