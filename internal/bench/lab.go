package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/bench/trial"
	"github.com/pglock/pglock-go/internal/testserver"
	"github.com/pglock/pglock-go/migrations"
	"github.com/pglock/pglock-go/pglock"
)

// fewConns is a client's default.
const fewConns = 4

// livelySettings let autovacuum run every few seconds beside the turns, as it does sooner or later beside
// an application. Rows that count operations per second use them.
var livelySettings = map[string]string{"autovacuum_naptime": "2s", "max_connections": "300"}

// serverVariable names a server that runs already, of another version for instance, where each lab then has
// a database of its own. Its settings are those that it has.
const serverVariable = "PGLOCK_BENCH_SERVER"

// lab is a row's own server, with a pool for the row's own statements.
type lab struct {
	url   string
	pool  *pgxpool.Pool
	peers map[*peer]string // the addresses of those that were started
	end   func() error     // of the server, or of the database
}

// open starts a durable server with PostgreSQL's defaults, except for the settings.
func (l *lab) open(ctx context.Context, settings map[string]string) (err error) {
	if url := os.Getenv(serverVariable); url != "" {
		err = l.createDatabase(ctx, url)
	} else {
		var server *testserver.Server
		if server, err = testserver.Start(ctx, testserver.Options{Durable: true, Settings: settings}); err == nil {
			l.url, l.end = server.URL(), server.Close
		}
	}
	if err != nil {
		return err
	}
	if l.pool, err = pgxpool.New(ctx, l.url); err != nil {
		return errors.Join(err, l.end())
	}
	return nil
}

func (l *lab) createDatabase(ctx context.Context, server string) error {
	name := "bench_" + strings.ToLower(rand.Text())
	run := func(ctx context.Context, statement string) error {
		conn, err := pgx.Connect(ctx, server)
		if err != nil {
			return err
		}
		defer conn.Close(ctx)
		_, err = conn.Exec(ctx, statement)
		return err
	}
	at, err := url.Parse(server)
	if err == nil {
		err = run(ctx, "CREATE DATABASE "+name)
	}
	if err != nil {
		return err
	}
	at.Path = name
	l.url, l.end = at.String(), func() error { return run(context.Background(), "DROP DATABASE "+name+" WITH (FORCE)") }
	return nil
}

func (l *lab) close() error {
	l.pool.Close()
	return l.end()
}

// prepare returns the Prepare of a row: it opens the lab, with a table of pairNames free locks, and runs
// the statements.
func (l *lab) prepare(settings map[string]string, statements ...string) func(context.Context, *trial.Scope) error {
	return func(ctx context.Context, s *trial.Scope) error {
		l.peers = map[*peer]string{}
		if err := l.open(ctx, settings); err != nil {
			return err
		}
		s.Defer(l.close)
		if err := l.table(ctx, "pglock", pairNames); err != nil {
			return err
		}
		return l.exec(ctx, statements...)
	}
}

// table creates the lock tables in a schema with n free locks, and vacuums and analyzes them as
// autovacuum would within a minute.
func (l *lab) table(ctx context.Context, schema string, n int) error {
	if err := migrations.Up(ctx, l.pool, migrations.WithSchema(schema)); err != nil {
		return err
	}
	name := pgx.Identifier{schema}.Sanitize()
	return l.exec(ctx,
		fmt.Sprintf(`INSERT INTO %[1]s.distributed_locks (name, token, version, acquired_at, expires_at)
			SELECT 'name-' || i, %[1]s.next_fencing_token(), 2, now(), '-infinity' FROM generate_series(0, %[2]d) AS i`, name, n-1),
		fmt.Sprintf("VACUUM (ANALYZE) %s.distributed_locks", name))
}

// createCounters creates a table that floors write to, with a row for each of pairNames names.
var createCounters = []string{
	"CREATE TABLE counters (name text PRIMARY KEY, n bigint NOT NULL)",
	fmt.Sprintf("INSERT INTO counters SELECT 'name-' || i, 0 FROM generate_series(0, %d) AS i", pairNames-1),
	"VACUUM ANALYZE counters",
}

const updateCounter = "UPDATE counters SET n = n + 1 WHERE name = $1"

// connect returns a pool of at most conns connections.
func connect(ctx context.Context, url string, conns int) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	config.MaxConns = int32(conns)
	return pgxpool.NewWithConfig(ctx, config)
}

// connect returns a pool of at most conns connections until the row is done.
func (l *lab) connect(ctx context.Context, s *trial.Scope, conns int) (*pgxpool.Pool, error) {
	pool, err := connect(ctx, l.url, conns)
	if err == nil {
		s.Defer(func() error { pool.Close(); return nil })
	}
	return pool, err
}

// client opens a client on a schema until the row is done.
func (l *lab) client(ctx context.Context, s *trial.Scope, schema string, opts ...pglock.Option) (*pglock.Client, error) {
	client, err := pglock.Open(ctx, l.pool, append([]pglock.Option{pglock.WithSchema(schema)}, opts...)...)
	if err == nil {
		s.Defer(func() error { return closeClient(client) })
	}
	return client, err
}

func closeClient(client *pglock.Client) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second) // for its leases
	defer cancel()
	return client.Close(ctx)
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

// connections returns the number of connections that clients have.
func (l *lab) connections(ctx context.Context) (n float64, err error) {
	err = l.pool.QueryRow(ctx, "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE '%pglock%' AND datname = current_database()").Scan(&n)
	return n, err
}

// written returns the bytes of WAL that the server writes while what runs.
func (l *lab) written(ctx context.Context, what func() error) (bytes float64, err error) {
	var before string
	if err := l.pool.QueryRow(ctx, "SELECT pg_current_wal_insert_lsn()::text").Scan(&before); err != nil {
		return 0, err
	}
	if err := what(); err != nil {
		return 0, err
	}
	err = l.pool.QueryRow(ctx, "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), $1::text::pg_lsn)::float8", before).Scan(&bytes)
	return bytes, err
}

// target is a bound for the ratio of a subject's figure to that of another one, or without another one
// for the figure itself.
func target(what, figure, ours, against string, rule trial.Rule) trial.Target {
	t := trial.Target{What: what, Ours: trial.Ref{Subject: ours, Figure: figure}, Rule: rule}
	if against != "" {
		t.Against = trial.Ref{Subject: against, Figure: figure}
	}
	return t
}

// pick returns one of three values by the scale.
func pick[T any](s trial.Scale, whole, quick, short T) T {
	switch {
	case s.Short:
		return short
	case s.Quick:
		return quick
	}
	return whole
}
