package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/bench/trial"
	"github.com/pglock/pglock-go/internal/testserver"
	"github.com/pglock/pglock-go/migrations"
	"github.com/pglock/pglock-go/pglock"
)

// closeBound bounds the release of a client's leases at the end of a row.
const closeBound = 10 * time.Second

// livelySettings let autovacuum run every few seconds beside the turns, as it does sooner or later beside
// an application. Rows that count operations per second use them.
var livelySettings = map[string]string{"autovacuum_naptime": "2s", "max_connections": "300"}

// lab is a row's own server, with a pool for the row's own statements.
type lab struct {
	server *testserver.Server
	pool   *pgxpool.Pool
}

// open starts a durable server with PostgreSQL's defaults, except for the settings.
func (l *lab) open(ctx context.Context, settings map[string]string) error {
	var err error
	if l.server, err = testserver.Start(ctx, testserver.Options{Durable: true, Settings: settings}); err != nil {
		return err
	}
	if l.pool, err = pgxpool.New(ctx, l.server.URL()); err != nil {
		return errors.Join(err, l.server.Close())
	}
	return nil
}

// prepare opens the lab until the row is done.
func (l *lab) prepare(ctx context.Context, s *trial.Scope, settings map[string]string) error {
	if err := l.open(ctx, settings); err != nil {
		return err
	}
	s.Defer(l.close)
	return nil
}

func (l *lab) close() error {
	l.pool.Close()
	return l.server.Close()
}

// connect returns a pool of at most conns connections.
func (l *lab) connect(ctx context.Context, s *trial.Scope, conns int) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(l.server.URL())
	if err != nil {
		return nil, err
	}
	config.MaxConns = int32(conns)
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	s.Defer(func() error { pool.Close(); return nil })
	return pool, nil
}

// migrate creates the lock tables in a schema.
func (l *lab) migrate(ctx context.Context, schema string) error {
	return migrations.Up(ctx, l.pool, migrations.WithSchema(schema))
}

// fill inserts n free locks, and vacuums and analyzes the table as autovacuum would within a minute.
func (l *lab) fill(ctx context.Context, schema string, n int) error {
	name := pgx.Identifier{schema}.Sanitize()
	return l.exec(ctx,
		fmt.Sprintf(`INSERT INTO %[1]s.distributed_locks (name, token, version, acquired_at, expires_at)
			SELECT 'name-' || i, %[1]s.next_fencing_token(), 2, now(), '-infinity' FROM generate_series(0, %[2]d) AS i`, name, n-1),
		fmt.Sprintf("VACUUM (ANALYZE) %s.distributed_locks", name))
}

// client opens a client on a schema.
func (l *lab) client(ctx context.Context, s *trial.Scope, schema string, opts ...pglock.Option) (*pglock.Client, error) {
	client, err := pglock.Open(ctx, l.pool, append([]pglock.Option{pglock.WithSchema(schema)}, opts...)...)
	if err != nil {
		return nil, err
	}
	s.Defer(func() error {
		ctx, cancel := context.WithTimeout(context.Background(), closeBound)
		defer cancel()
		return client.Close(ctx)
	})
	return client, nil
}

// exec runs statements one after the other, each in its own transaction.
func (l *lab) exec(ctx context.Context, statements ...string) error {
	for _, statement := range statements {
		if _, err := l.pool.Exec(ctx, statement); err != nil {
			return fmt.Errorf("%s: %w", statement, err)
		}
	}
	return nil
}

// written returns the bytes of WAL that the server writes while what runs.
func (l *lab) written(ctx context.Context, what func() error) (float64, error) {
	position := func() (lsn string, err error) {
		err = l.pool.QueryRow(ctx, "SELECT pg_current_wal_insert_lsn()::text").Scan(&lsn)
		return lsn, err
	}
	before, err := position()
	if err != nil {
		return 0, err
	}
	if err := what(); err != nil {
		return 0, err
	}
	var bytes float64
	err = l.pool.QueryRow(ctx, "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), $1::text::pg_lsn)::float8", before).Scan(&bytes)
	return bytes, err
}
