package pglock

import (
	"context"
	"database/sql"
	"regexp"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/internal/pgtx"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/leasetable"
	"github.com/pglock/pglock-go/pglock/inspect"
	"github.com/pglock/pglock-go/pglock/internal/backend"
	"github.com/pglock/pglock-go/pglock/internal/link"
	"github.com/pglock/pglock-go/pglock/internal/records"
)

// tables is the store of a client of Open or OpenDB. The statements of leases use the connections
// of the link, and everything that takes a transaction or a callback uses those of the
// application.
type tables struct {
	*leasetable.Table
	*link.Link
	schema string
	pool   *pgxpool.Pool // the application's, from Open
	db     *sql.DB       // the same, from OpenDB
}

// connect returns what makes the store. Its connections have this configuration.
func (t tables) connect(connections *pgxpool.Config, cfg clientConfig) func(life context.Context) backend.Store {
	return func(life context.Context) backend.Store {
		t.schema = cfg.schema
		t.Link = link.New(life, connections, link.Config{
			Schema: cfg.schema, MaxConns: cfg.maxConns, Listener: cfg.listener, Standby: cfg.standby, Logger: cfg.logger, Holder: cfg.lease.holder,
		})
		t.Table = leasetable.New(cfg.schema, t.Link)
		return &t
	}
}

// WithConn is Client.WithConn.
func (t *tables) WithConn(ctx context.Context, fn func(conn *pgx.Conn) error) error {
	if t.db == nil {
		return t.pool.AcquireFunc(ctx, func(conn *pgxpool.Conn) error { return fn(conn.Conn()) })
	}
	conn, release, err := pgtx.Borrow(ctx, t.db)
	if err != nil {
		return err
	}
	defer release()
	return fn(conn)
}

// DoTx runs fn in a transaction that holds the key.
func (t *tables) DoTx(ctx context.Context, key advisory.Key, fn func(ctx context.Context, tx pgx.Tx) error, opts ...advisory.DoOption) error {
	if t.db != nil {
		return advisory.DoDB(ctx, t.db, key, fn, opts...)
	}
	return advisory.Do(ctx, t.pool, key, fn, opts...)
}

// InTx is DoTx at READ COMMITTED.
func (t *tables) InTx(ctx context.Context, key advisory.Key, fn func(ctx context.Context, tx pgx.Tx) error) error {
	return t.DoTx(ctx, key, fn, advisory.WithIsolation(pgx.ReadCommitted))
}

// Get reads the row of a name, and reports whether there is one.
func (t *tables) Get(ctx context.Context, name string) (row backend.Row, found bool, err error) {
	var p page
	err = readInto(ctx, t, &p, (*page).scan, schema.Render(getSQL+rowSQL, t.schema), name)
	if err != nil || len(p.rows) == 0 {
		return backend.Row{Lock: inspect.Lock{Name: name}}, false, err
	}
	return p.rows[0], true, nil
}

// readInto sends a statement that changes nothing, at most twice, and scans its rows into *into, which
// is empty at the beginning of each attempt.
//
// It reads the queues of a standby as empty: they are not replicated, and a statement that names their
// tables fails there.
func readInto[T any](ctx context.Context, s leasetable.Sender, into *T, scan func(*T, pgx.Rows) error, sql string, args ...any) error {
	var none T // an attempt may fail half-way
	_, err := s.Send(ctx, leasetable.Statement{
		SQL: sql, Args: append([]any{onStandby{}}, args...), Tries: 2, Begin: func() { *into = none }, Row: func(r pgx.Rows) error { return scan(into, r) },
	})
	return err
}

// unlogged is what a standby can't read, after the name of the schema.
var unlogged = regexp.MustCompile(`("(?:[^"]|"")+"|\w+)\.(?:lock_waiters|locks_waiting|nested_waits)\b`)

// onStandby rewrites a statement that is sent to a standby: it reads no row of what is unlogged.
type onStandby struct{}

func (onStandby) RewriteQuery(_ context.Context, conn *pgx.Conn, sql string, args []any) (string, []any, error) {
	if link.OnStandby(conn.PgConn()) {
		sql = unlogged.ReplaceAllString(sql, "jsonb_populate_recordset(NULL::$0, '[]')")
	}
	return sql, args, nil
}

// Records runs op on a connection of the application.
func (t *tables) Records(ctx context.Context, op func(ctx context.Context, all records.Records) error) error {
	return t.WithConn(ctx, func(conn *pgx.Conn) error { return op(ctx, records.Table{DB: conn, Schema: t.schema}) })
}
