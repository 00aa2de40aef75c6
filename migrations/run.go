package migrations

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Run carries out a service's own migrations, as many as are missing, on the database that
// pool leads to. It is for services that migrate when they start: any number of replicas may
// call it at once. One migrates, the others wait and then go on.
//
//	err := migrations.Run(ctx, migrations.Files(files, "migrations"), pool,
//		migrations.WithTimeout(10*time.Minute), migrations.WithLogger(slog.Default()))
//
// The files and the version table are golang-migrate's, so that its command goes on to work
// (not at the same time: it has a lock of its own). If nothing is missing Run needs no lock,
// and no right but to read the version table.
//
// A migration and its record are one transaction: if it fails, or its process is killed,
// both are undone, and the next replica does it. What can't run in a transaction (CREATE INDEX
// CONCURRENTLY, VACUUM, procedures that commit) needs a file of its own, and is recorded as golang-migrate does,
// dirty before and clean after. The record is changed only if it is still what was read, so
// even a run that has lost its lock without knowing carries nothing out twice.
//
// ctx bounds all of it: the wait, and the migrations. When it ends, the one under way is
// cancelled. When the lock is lost, the one under way is finished, and no other begun.
//
// On success the database is at the source's last version. The error is
//
//   - *WaitError (ErrNotAcquired): others held the lock for too long; it tells who. ErrPooled: behind a
//     pooler in transaction mode the lock must be a lease.
//   - *MigrationError (ErrMigration): a file's SQL failed; it tells whether anything of it is left.
//   - *HalfwayError (ErrDirty): one that is no transaction was begun and its end not recorded.
//   - *VersionError (ErrUnknownVersion, ErrOtherSource): the database was migrated from another source.
//   - *StoppedError (ErrLost): the lock was lost between two migrations.
//   - ErrNoMigrations, ErrInvalidOption, or the source's or server's.
//
// In each case the version table tells the truth.
func Run(ctx context.Context, source Source, pool *pgxpool.Pool, opts ...RunOption) error {
	cfg := runConfig{lock: lockConfig{wait: newWaitConfig()}, table: defaultTable}
	for _, o := range opts {
		if err := o.applyRun(&cfg); err != nil {
			return err
		}
	}
	if pool == nil {
		return invalidOption("the pool is nil")
	}
	cfg.lock.wait.complete()
	f, err := openFiles(source)
	if err != nil {
		return err
	}
	r := &runner{cfg: cfg, files: f}
	err = r.run(ctx, pool)
	return errors.Join(err, f.close())
}

// defaultTable is golang-migrate's.
const defaultTable = "schema_migrations"

// runner is one call of Run.
type runner struct {
	cfg    runConfig
	files  *files
	pool   *pgxpool.Pool // its own: a pool that is small or busy can't block it
	record record
	lock   hold
}

func (r *runner) run(ctx context.Context, pool *pgxpool.Pool) (err error) {
	if r.pool, err = ownPool(ctx, pool); err != nil {
		return err
	}
	defer r.pool.Close()
	if r.record, err = openRecord(ctx, r.pool, r.cfg); err != nil {
		return err
	}
	if r.cfg.lock.name == "" {
		r.cfg.lock.name = "migrations of " + r.record.quoted
	}
	if _, missing, err := r.look(ctx); !missing && (err == nil || !errors.Is(err, ErrDirty)) {
		return err
	}
	// One that is under way looks dirty, too: the lock tells.
	l, err := r.cfg.lock.open(ctx, pool)
	if err != nil {
		return err
	}
	defer l.close()
	if r.lock, err = wait(ctx, l, r.cfg.lock.name, r.cfg.lock.wait); err != nil {
		return err
	}
	if r.cfg.locked != nil {
		r.cfg.locked(r.lock)
	}
	err = r.migrate(ctx)
	if e := giveUp(ctx, r.lock); e != nil { // what was done is done: the record does not depend on the lock
		r.cfg.lock.wait.logger.Warn("pglock: the lock of a migration could not be released", "lock", r.cfg.lock.name, "error", e)
	}
	return err
}

// look tells where the database is and whether it must be migrated.
func (r *runner) look(ctx context.Context) (at position, missing bool, err error) {
	if at, err = r.record.read(ctx, r.pool); err != nil {
		return at, false, err
	}
	if err = r.files.check(r.record, at); err != nil {
		return at, false, err
	}
	_, missing = r.files.next(at)
	return at, missing, nil
}

// migrate carries out one migration after the other. It has the lock.
func (r *runner) migrate(ctx context.Context) error {
	for {
		at, missing, err := r.look(ctx)
		switch {
		case err != nil || !missing:
			return err
		case r.lock.Err() != nil:
			return &StoppedError{Lock: r.cfg.lock.name, Version: at.version, Cause: r.lock.Err()}
		case ctx.Err() != nil:
			return fmt.Errorf("migrations: stopped at version %d: %w", at.version, context.Cause(ctx))
		case !at.exists:
			if err := r.record.create(ctx, r.pool); err != nil {
				return err
			}
			continue
		}
		version, _ := r.files.next(at)
		m, err := r.files.read(version)
		if err != nil {
			return err
		}
		begun := time.Now()
		err = r.apply(ctx, at, m)
		switch {
		case errors.Is(err, errMoved): // by a run that has lost its lock and was still at it: look again
		case err != nil:
			return err
		default:
			r.cfg.lock.wait.logger.Info("pglock: migrated", "version", m.version, "name", m.name, "took", time.Since(begun))
		}
	}
}
