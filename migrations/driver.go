package migrations

import (
	"context"
	"errors"
	"io"

	"github.com/golang-migrate/migrate/v4/database"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/schema"
)

// driver applies migrations for golang-migrate, and records them in the same table as its own
// driver. That one waits without end for an advisory lock whose key any role can compute, replaces
// the version by TRUNCATE, which needs the lock that withLock holds, and resolves names by the
// connection's search_path, where strangers may have created functions.
type driver struct {
	ctx  context.Context //nolint:containedctx // golang-migrate's methods take none; without its end, because a migration that has begun is not canceled
	conn *pgxpool.Conn
	path string // sets search_path
	cfg  config
}

func newDriver(ctx context.Context, own *pgxpool.Pool, cfg config) (*driver, error) {
	conn, err := own.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	path := "SET LOCAL search_path TO " + schema.Quote(cfg.schema) + ", pg_temp;\n"
	return &driver{context.WithoutCancel(ctx), conn, path, cfg}, nil
}

// Run applies one file in one transaction: the server makes one of all statements of a simple
// query. The search_path is local to it, so the connection keeps its own, also behind a pooler.
func (d *driver) Run(migration io.Reader) error {
	sql, err := io.ReadAll(migration)
	if err != nil {
		return err
	}
	return d.conn.Conn().PgConn().Exec(d.ctx, d.path+string(sql)).Close()
}

// SetVersion replaces the record. golang-migrate's number for no version stays only while dirty.
func (d *driver) SetVersion(version int, dirty bool) error {
	return pgx.BeginFunc(d.ctx, d.conn, func(tx pgx.Tx) error {
		_, err := tx.Exec(d.ctx, "DELETE FROM "+d.cfg.versionTable())
		if err == nil && (version >= 0 || dirty) {
			_, err = tx.Exec(d.ctx, "INSERT INTO "+d.cfg.versionTable()+" (version, dirty) VALUES ($1, $2)", version, dirty)
		}
		return err
	})
}

func (d *driver) Version() (version int, dirty bool, err error) {
	err = d.conn.QueryRow(d.ctx, "SELECT version, dirty FROM "+d.cfg.versionTable()).Scan(&version, &dirty)
	if errors.Is(err, pgx.ErrNoRows) {
		if found := constant(d.ctx, d.conn, d.cfg.schema, "pglock_schema_version"); found > 0 { // see readState
			return found, false, nil
		}
		return database.NilVersion, false, nil
	}
	return version, dirty, err
}

func (d *driver) Close() error {
	d.conn.Release()
	return nil
}

// Lock and Unlock do nothing, because withLock holds the lock. Open and Drop are not used.
func (d *driver) Lock() error                          { return nil }
func (d *driver) Unlock() error                        { return nil }
func (d *driver) Open(string) (database.Driver, error) { return nil, errors.ErrUnsupported }
func (d *driver) Drop() error                          { return errors.ErrUnsupported }
