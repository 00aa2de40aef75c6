package pgtest

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	// cleanupTimeout bounds a cleanup on the server. A transaction that a test left open runs into it.
	// From PostgreSQL 15 on, DROP DATABASE waits until each process of the server has reacted to it
	// (wait event ProcSignalBarrier). On a busy machine this took 34 s.
	cleanupTimeout = time.Minute

	// maxConns is a pool's size unless a test sets another. Many pools share the server.
	maxConns = 8

	// rolePassword is the password of every role that tests create.
	rolePassword = "poor"
)

var (
	// oddNames are names that break code which does not quote, or quotes by hand. Each asterisk
	// stands for a unique part. None is longer than 63 bytes, where PostgreSQL cuts names.
	oddNames = []string{
		"plain_*",
		"UPPER_Case_*",
		"with space *",
		`double"quote_*`,
		"dash-*",
		"ünïcödé_漢字_*",
		"select_*",
		"single'quote_*",
		"dot.ted_*",
		`back\slash_%s_$1_*`,
		"$function$_*",
		`"<here>"'<here>'<schema>_*`,
	}
	namesGiven atomic.Uint64

	roles sync.Map // that this process has created
)

// oddName returns a unique name. It uses oddNames in turn.
func oddName() string {
	shape := oddNames[(namesGiven.Add(1)-1)%uint64(len(oddNames))]
	return strings.Replace(shape, "*", strings.ToLower(rand.Text()[:16]), 1)
}

// Pool returns a pool on the shared server, changed by opts. Cleanup closes it.
func Pool(tb testing.TB, opts ...func(*pgxpool.Config)) *pgxpool.Pool {
	tb.Helper()
	return PoolOn(tb, URL(tb), opts...)
}

// PoolOn is Pool for another server, database or path to it.
func PoolOn(tb testing.TB, url string, opts ...func(*pgxpool.Config)) *pgxpool.Pool {
	tb.Helper()
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		tb.Fatalf("pgtest: %v", err)
	}
	config.MaxConns = maxConns
	for _, opt := range opts {
		opt(config)
	}
	return open(tb, config)
}

func open(tb testing.TB, config *pgxpool.Config) *pgxpool.Pool {
	tb.Helper()
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		tb.Fatalf("pgtest: %v", err)
	}
	tb.Cleanup(pool.Close)
	return pool
}

// Database creates an empty database on the shared server and returns its URL. Cleanup drops it,
// even while clients are connected.
func Database(tb testing.TB) string {
	tb.Helper()
	return createDatabase(tb, oddName(), "")
}

// createDatabase creates a database with these options, and then settings of its own.
func createDatabase(tb testing.TB, name, options string, settings ...string) string {
	tb.Helper()
	u, err := url.Parse(URL(tb))
	if err != nil {
		tb.Fatal("pgtest: a new database needs the server's address as a URL, not as keywords and values")
	}
	server, database := config(tb, u.String()), quote(name)
	statements := []string{"CREATE DATABASE " + database + " TEMPLATE template0 " + options}
	for _, setting := range settings {
		statements = append(statements, "ALTER DATABASE "+database+" SET "+setting)
	}
	if err := execute(server, statements...); err != nil {
		tb.Fatalf("pgtest: create database %q: %v", name, err)
	}
	tb.Cleanup(func() {
		used.Lock()
		for _, s := range used.schemas[name] {
			s.close()
		}
		delete(used.schemas, name) // they go with it
		used.Unlock()
		if err := execute(server, "DROP DATABASE "+database+" WITH (FORCE)"); err != nil {
			tb.Errorf("pgtest: drop database %q: %v", name, err)
		}
	})
	u.Path, u.RawPath = "/"+name, ""
	return u.String()
}

// UserPool returns a pool like the given one, with a role that has only what migrations.WithUser
// grants on the schema's locks. Cleanup drops the role.
func UserPool(tb testing.TB, pool *pgxpool.Pool, schema string) *pgxpool.Pool {
	tb.Helper()
	return poolAs(tb, pool, schema, "user")
}

// WriterPool is UserPool for what migrations.WithWriter grants.
func WriterPool(tb testing.TB, pool *pgxpool.Pool, schema string) *pgxpool.Pool {
	tb.Helper()
	return poolAs(tb, pool, schema, "writer")
}

// ReaderPool is UserPool for what migrations.WithReader grants.
func ReaderPool(tb testing.TB, pool *pgxpool.Pool, schema string) *pgxpool.Pool {
	tb.Helper()
	return poolAs(tb, pool, schema, "reader")
}

// RoleOf returns the name of the role that a pool connects as.
func RoleOf(pool *pgxpool.Pool) string { return pool.Config().ConnConfig.User }

// poolAs grants by the schema's function grant_user, grant_writer or grant_reader.
func poolAs(tb testing.TB, pool *pgxpool.Pool, schema, kind string) *pgxpool.Pool {
	tb.Helper()
	c := pool.Config()
	role := fmt.Sprintf("%s %.20x", kind, sha256.Sum256([]byte(schema)))
	admin := c.ConnConfig.Copy()
	create, found := roles.LoadOrStore(role, sync.OnceValue(func() error {
		return execute(admin, "CREATE ROLE "+quote(role)+" LOGIN PASSWORD '"+rolePassword+"'",
			fmt.Sprintf("SELECT %s.grant_%s('%s')", quote(schema), kind, role))
	}))
	if err := create.(func() error)(); err != nil { // also waits for the parallel test that creates the role
		tb.Fatalf("pgtest: role %q: %v", role, err)
	}
	if !found {
		tb.Cleanup(func() {
			if err := execute(admin, "DROP OWNED BY "+quote(role), "DROP ROLE "+quote(role)); err != nil {
				tb.Logf("pgtest: drop role %q: %v", role, err) // its server may be closed
			}
			roles.Delete(role) // the schema's next test creates it again
		})
	}
	c.ConnConfig.User, c.ConnConfig.Password = role, rolePassword
	return open(tb, c)
}

func quote(name string) string { return pgx.Identifier{name}.Sanitize() }

func config(tb testing.TB, url string) *pgx.ConnConfig {
	tb.Helper()
	c, err := pgx.ParseConfig(url)
	if err != nil {
		tb.Fatalf("pgtest: %v", err)
	}
	return c
}

// execute runs statements on a connection of its own.
func execute(server *pgx.ConnConfig, statements ...string) error {
	return connect(server, func(ctx context.Context, conn *pgx.Conn) error {
		for _, sql := range statements {
			if _, err := conn.Exec(ctx, sql); err != nil {
				return err
			}
		}
		return nil
	})
}

// connect uses a connection of its own.
func connect(server *pgx.ConnConfig, use func(context.Context, *pgx.Conn) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
	defer cancel()
	conn, err := pgx.ConnectConfig(ctx, server.Copy())
	if err != nil {
		return err
	}
	defer conn.Close(context.Background())
	return use(ctx, conn)
}
