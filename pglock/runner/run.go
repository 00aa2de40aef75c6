package runner

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/errs"
)

// Run runs a service's missing migrations on the database of pool. It is for services that migrate
// when they start: any number of replicas may call it at once. One of them migrates, the others
// wait and then continue.
//
//	err := runner.Run(ctx, runner.Files(files, "migrations"), pool,
//		runner.WithTimeout(10*time.Minute), runner.WithLogger(slog.Default()))
//
// The files and the version table are golang-migrate's, so its command continues to work. (Both may
// run at the same time only with WithKey, because the command acquires another lock.) If no
// migration is missing, Run acquires no lock, and needs no right except to read the version table
// and the record of files beside it: see the package documentation.
//
// ctx bounds the whole call, the wait and the migrations. When ctx ends, Run cancels the current
// migration. When the lock is lost, Run finishes the current migration and begins no other.
//
// On success the database is at the source's last version. The error is
//
//   - *pglock.WaitError (pglock.ErrNotAcquired): others held the lock for too long. It names the
//     holder. advisory.ErrPooled: behind a pooler in transaction mode the lock must be a lease.
//   - *MigrationError: the SQL of a file failed. It says whether anything is left.
//   - ErrDirty, ErrUnknownVersion, ErrOtherSource, ErrOutOfOrder, ErrChanged or ErrNoMigrations.
//   - pglock.ErrLost: the lock was lost between two migrations.
//   - pglock.ErrInvalidOption, or an error of the source or the server.
//
// After each of them the version table and the record are correct.
func Run(ctx context.Context, source Source, pool *pgxpool.Pool, opts ...Option) error {
	cfg, err := newConfig(opts)
	switch {
	case err != nil:
		return err
	case pool == nil:
		return errs.InvalidOption("runner", "Run: the pool is nil")
	}
	f, err := openSource(source)
	if err != nil {
		return err
	}
	r := &runner{config: cfg, files: f}
	return errs.Join(r.run(ctx, pool), f.driver.Close())
}

const defaultTable = "schema_migrations"

type runner struct {
	*config
	files *files
	pool  *pgxpool.Pool // its own, so that a small or busy pool can't block it
	table versionTable
	held  heldLocks
}

func (r *runner) run(ctx context.Context, pool *pgxpool.Pool) (err error) {
	if r.pool, err = r.ownPool(ctx, pool); err != nil {
		return err
	}
	defer r.pool.Close()
	if r.table, err = r.openVersionTable(ctx, r.pool); err != nil {
		return err
	}
	if n := len(r.table.table) + len(recordSuffix); n > maxIdentifier {
		return errs.InvalidOption("runner", "WithVersionTable: %q: is %d bytes too long for the record beside it", r.table.table, n-maxIdentifier)
	}
	at, d, err := r.check(ctx)
	switch {
	case err != nil && !errors.Is(err, ErrDirty):
		return err
	case err == nil && len(d.run) == 0 && (len(d.record) == 0 || !at.mayRecord):
		return nil
	}
	// A migration that runs now looks dirty too. Only the holder of the lock can distinguish the
	// two.
	if r.held, err = r.wait(ctx, r.pool); err != nil {
		return err
	}
	defer func() { // without recover, so that a panic of the source keeps its stack
		if e := release(ctx, r.held); e != nil { // not an error of Run: the record is correct without the lock
			r.logger.Warn("pglock: the lock of a migration could not be released", "lock", r.name, "error", e)
		}
	}()
	return r.migrate(ctx)
}

func (r *runner) check(ctx context.Context) (at tableState, d plan, err error) {
	if at, err = r.table.read(ctx, r.pool); err != nil {
		return at, d, err
	}
	newer := r.allowNewer && r.files.newer(at)
	if newer {
		r.logger.Info("pglock: a later release has migrated the database", "table", r.table.quoted, "version", at.version, "last", r.files.last())
	} else if err = r.files.check(r.table, at); err != nil {
		return at, d, err
	}
	d, err = r.files.compare(r.config, r.table, at)
	if newer { // the later release records what it has found
		d.record = nil
	}
	return at, d, err
}

func (r *runner) migrate(ctx context.Context) error {
	for {
		at, d, err := r.check(ctx)
		switch {
		case err != nil || len(d.run)+len(d.record) == 0:
			return err
		case r.held.Err() != nil:
			return errs.Errorf("runner: lost lock %q: stopped at version %d, before the next migration: %w", r.name, at.version, r.held.Err())
		case ctx.Err() != nil:
			return errs.Errorf("runner: stopped at version %d: %w", at.version, context.Cause(ctx))
		case !at.exists || !at.recorded:
			err = r.table.create(ctx, r.pool, at.exists)
		case len(d.record) > 0:
			err = r.adopt(ctx, at, d.record)
		default:
			m, start := d.run[0], time.Now()
			if err = r.apply(ctx, at, m); err == nil {
				r.logger.Info("pglock: migrated", "version", m.version, "name", m.name, "took", time.Since(start))
			}
		}
		if err != nil && !errors.Is(err, errVersionChanged) { // by a run that has lost its lock and was not finished: check again
			return err
		}
	}
}

// adopt records migrations that ran without this package, unless the version changes meanwhile.
func (r *runner) adopt(ctx context.Context, at tableState, all []migration) error {
	r.logger.Info("pglock: recording migrations as applied, since the version is not lower", "version", at.version, "migrations", fmt.Sprint(all))
	return inTx(ctx, r.pool, func(ctx context.Context, tx pgx.Tx) error {
		err := r.table.replace(ctx, tx, at, at)
		for i := 0; i < len(all) && err == nil; i++ {
			err = r.table.record(ctx, tx, at, all[i], false)
		}
		return err
	})
}
