package pglocktest

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/migrations"
	"github.com/pglock/pglock-go/pglock"
)

// urlVariable names the database of tests that pass no pool.
const urlVariable = "PGLOCK_TEST_DATABASE_URL"

//go:embed watch.sql
var watchSQL string

//go:embed empty.sql
var emptySQL string

//go:embed advance.sql
var advanceSQL string

//go:embed expire.sql
var expireSQL string

// database is a place in a schema of a database.
type database struct {
	pool    *pgxpool.Pool // for statements of the test
	schema  string
	network *network
	config  *pgxpool.Config // of the clients' pools, whose connections go through the network
}

func newDatabase(tb testing.TB, pool *pgxpool.Pool) (*database, error) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if pool == nil {
		url := os.Getenv(urlVariable)
		if url == "" {
			return nil, errors.New("no database: pass a pool, or set " + urlVariable + ", or use Fake")
		}
		var err error
		if pool, err = pgxpool.New(ctx, url); err != nil {
			return nil, err
		}
		tb.Cleanup(pool.Close)
	}
	d := &database{pool: pool, network: &network{conns: map[net.Conn]struct{}{}}, config: pool.Config()}
	d.network.dial = d.config.ConnConfig.DialFunc
	d.config.ConnConfig.DialFunc = d.network.connect
	d.config.MinConns, d.config.MinIdleConns, d.config.MaxConns = 0, 0, 4
	return d, d.take(ctx, tb)
}

// take takes a schema that no other test has, by an advisory lock of a session, and makes or empties
// its tables. Tables of another version are made anew.
func (d *database) take(ctx context.Context, tb testing.TB) error {
	tb.Helper()
	conn, err := pgx.ConnectConfig(ctx, d.pool.Config().ConnConfig)
	if err != nil {
		return err
	}
	tb.Cleanup(func() { _ = conn.Close(context.Background()) }) // others may have the schema
	for n, taken := 1, false; !taken; n++ {
		d.schema = fmt.Sprint("pglocktest_", n)
		if err := conn.QueryRow(ctx, "SELECT pg_try_advisory_lock(hashtextextended($1, 0))", d.schema).Scan(&taken); err != nil {
			return err
		}
	}
	want, err := version()
	if err != nil {
		return err
	}
	var found string
	err = conn.QueryRow(ctx, "SELECT coalesce(obj_description(oid, 'pg_namespace'), '') FROM pg_namespace WHERE nspname = $1", d.schema).Scan(&found)
	if err == nil && found == want {
		_, err = conn.Exec(ctx, schema.Render(emptySQL, d.schema), pgx.QueryExecModeSimpleProtocol)
		return err
	}
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return err
	}
	if _, err := conn.Exec(ctx, "DROP SCHEMA IF EXISTS "+schema.Quote(d.schema)+" CASCADE"); err != nil {
		return err
	}
	if err := migrations.Up(ctx, d.pool, migrations.WithSchema(d.schema)); err != nil {
		return err
	}
	_, err = conn.Exec(ctx, "COMMENT ON SCHEMA "+schema.Quote(d.schema)+" IS '"+want+"'")
	return err
}

// version returns a hash of the migrations.
var version = sync.OnceValues(func() (string, error) {
	files, err := fs.Glob(migrations.FS, "*.up.sql")
	hash := sha256.New()
	for _, file := range files {
		text, failed := migrations.FS.ReadFile(file)
		err = errors.Join(err, failed)
		hash.Write(text)
	}
	return "pglocktest " + hex.EncodeToString(hash.Sum(nil)[:16]), err
})

func (d *database) open(ctx context.Context, tb testing.TB, opts []pglock.Option) (*pglock.Client, error) {
	tb.Helper()
	pool, err := pgxpool.NewWithConfig(ctx, d.config.Copy())
	if err != nil {
		return nil, err
	}
	tb.Cleanup(pool.Close)
	return pglock.Open(ctx, pool, append(opts, pglock.WithSchema(d.schema))...)
}

func (d *database) begin(ctx context.Context) (pgx.Tx, error) { return d.pool.Begin(ctx) }

func (d *database) expire(ctx context.Context, name string, token fencing.Token) error {
	return d.run(ctx, expireSQL, name, int64(token))
}

func (d *database) advance(ctx context.Context, by time.Duration) error {
	return d.run(ctx, advanceSQL, by)
}

// run runs the statements of a file, which have the same parameters, in one transaction.
func (d *database) run(ctx context.Context, file string, args ...any) error {
	return pgx.BeginFunc(ctx, d.pool, func(tx pgx.Tx) error {
		for _, statement := range strings.Split(schema.Render(file, d.schema), ";\n") {
			if _, err := tx.Exec(ctx, statement, args...); err != nil {
				return err
			}
		}
		return nil
	})
}

// watch makes each table count the rows that a transaction without a guard writes.
func (d *database) watch(ctx context.Context, tables []string) error {
	if _, err := d.pool.Exec(ctx, schema.Render(watchSQL, d.schema), pgx.QueryExecModeSimpleProtocol); err != nil {
		return err
	}
	for _, table := range tables {
		if _, err := d.pool.Exec(ctx, schema.Render("SELECT pglock.watch_writes($1::text)", d.schema), table); err != nil {
			_, undone := d.unwatch(tables)
			return errors.Join(err, undone)
		}
	}
	return nil
}

// unwatch ends watch, and returns what was written.
func (d *database) unwatch(tables []string) (unguarded []string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience) // the test may be at its end
	defer cancel()
	for _, table := range tables {
		var rows int64
		failed := d.pool.QueryRow(ctx, schema.Render("SELECT pglock.unwatch_writes($1::text)", d.schema), table).Scan(&rows)
		if err = errors.Join(err, failed); rows > 0 {
			unguarded = append(unguarded, fmt.Sprintf("%d rows of %s", rows, table))
		}
	}
	return unguarded, err
}

func (d *database) setDown(down bool) { d.network.setDown(down) }

// network has the connections of the clients, which a test can cut.
type network struct {
	dial func(ctx context.Context, network, address string) (net.Conn, error)

	mu    sync.Mutex // guards the fields below
	down  bool
	conns map[net.Conn]struct{}
}

func (n *network) connect(ctx context.Context, kind, address string) (net.Conn, error) {
	conn, err := n.dial(ctx, kind, address)
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.down {
		return nil, errors.Join(&net.OpError{Op: "dial", Net: kind, Err: syscall.ECONNREFUSED}, conn.Close())
	}
	n.conns[conn] = struct{}{}
	return conn, nil
}

func (n *network) setDown(down bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.down = down
	if down {
		for conn := range n.conns {
			_ = conn.Close() // it may have ended
			delete(n.conns, conn)
		}
	}
}
