package adapters_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"
	"github.com/pressly/goose/v3/lock/locktesting"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/gooselock"
)

var (
	_ lock.SessionLocker = (*gooselock.SessionLocker)(nil)
	_ lock.Locker        = (*gooselock.Locker)(nil)
)

// openDB opens a database/sql pool with pgx's driver, which the test closes.
func openDB(t *testing.T, url string, opts ...func(*pgx.ConnConfig)) *sql.DB {
	t.Helper()
	config, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range opts {
		o(config)
	}
	db := stdlib.OpenDB(*config)
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

func gooseFiles(texts ...string) fstest.MapFS {
	files := fstest.MapFS{}
	for i, text := range texts {
		files[string(rune('1'+i))+"_m.sql"] = &fstest.MapFile{Data: []byte("-- +goose Up\n" + text + "\n")}
	}
	return files
}

// kind is a kind of lock for goose.
type kind struct {
	name   string
	option func(t *testing.T, client *pglock.Client, opts ...gooselock.Option) goose.ProviderOption
	lock   func(t *testing.T, client *pglock.Client, db *sql.DB) func(ctx context.Context) error // as goose does
}

var kinds = []kind{
	{"SessionLocker", func(t *testing.T, _ *pglock.Client, opts ...gooselock.Option) goose.ProviderOption {
		t.Helper()
		l, err := gooselock.NewSessionLocker("m", opts...)
		if err != nil {
			t.Fatal(err)
		}
		return goose.WithSessionLocker(l)
	}, func(t *testing.T, _ *pglock.Client, db *sql.DB) func(ctx context.Context) error {
		t.Helper()
		l, err := gooselock.NewSessionLocker("m")
		if err != nil {
			t.Fatal(err)
		}
		conn, err := db.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() }) // it may be closed
		return func(ctx context.Context) error { return l.SessionLock(ctx, conn) }
	}},
	{"Locker", func(t *testing.T, client *pglock.Client, opts ...gooselock.Option) goose.ProviderOption {
		t.Helper()
		l, err := gooselock.NewLocker(client, "m", opts...)
		if err != nil {
			t.Fatal(err)
		}
		return goose.WithLocker(l)
	}, func(t *testing.T, client *pglock.Client, db *sql.DB) func(ctx context.Context) error {
		t.Helper()
		l, err := gooselock.NewLocker(client, "m")
		if err != nil {
			t.Fatal(err)
		}
		return func(ctx context.Context) error { return l.Lock(ctx, db) }
	}},
}

// TestGoosesOwnSuite runs goose's locktesting on both kinds.
func TestGoosesOwnSuite(t *testing.T) {
	t.Parallel()
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			url := pgtest.Database(t)
			client := locktest.Client(t, url)
			locktesting.TestProviderLocking(t, func(t *testing.T) *goose.Provider {
				t.Helper()
				p, err := goose.NewProvider(goose.DialectPostgres, openDB(t, url), gooseFiles("CREATE TABLE a ();", "CREATE TABLE b ();", "SELECT 1;"), k.option(t, client))
				if err != nil {
					t.Fatal(err)
				}
				return p
			})
			locktest.NoLockLeft(t, pgtest.PoolOn(t, url))
		})
	}
	for name, newLocker := range map[string]func(t *testing.T, client *pglock.Client) (lock.Locker, error){
		"Locker, concurrent": func(_ *testing.T, client *pglock.Client) (lock.Locker, error) {
			return gooselock.NewLocker(client, "m")
		},
		"SessionLocker, concurrent": func(*testing.T, *pglock.Client) (lock.Locker, error) {
			l, err := gooselock.NewSessionLocker("m")
			return &onConnection{session: l}, err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := pgtest.Database(t)
			client := locktest.Client(t, url)
			locktesting.TestConcurrentLocking(t, openDB(t, url), func(t *testing.T) lock.Locker {
				t.Helper()
				l, err := newLocker(t, client)
				if err != nil {
					t.Fatal(err)
				}
				return l
			}, time.Second)
			locktest.NoLockLeft(t, pgtest.PoolOn(t, url))
		})
	}
}

// onConnection passes a SessionLocker a connection, as goose does, so that the suite for a Locker
// can test it.
type onConnection struct {
	session lock.SessionLocker
	conn    *sql.Conn
}

func (o *onConnection) Lock(ctx context.Context, db *sql.DB) error {
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	if err := o.session.SessionLock(ctx, conn); err != nil {
		return errors.Join(err, conn.Close())
	}
	o.conn = conn
	return nil
}

func (o *onConnection) Unlock(ctx context.Context, _ *sql.DB) error {
	return errors.Join(o.session.SessionUnlock(ctx, o.conn), o.conn.Close())
}

// TestP30_P31_GooseWaits: a wait that times out names the holder and leaves nothing behind, and
// waiters do not block CREATE INDEX CONCURRENTLY.
func TestP30_P31_GooseWaits(t *testing.T) {
	t.Parallel()
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			url := pgtest.Database(t)
			pool := pgtest.PoolOn(t, url)
			g := locktest.NewGate(t, pool)
			named := func(c *pgx.ConnConfig) { c.RuntimeParams["application_name"] = "the holder" }
			files := gooseFiles("CREATE TABLE a (n int);", g.SQL(), "-- +goose NO TRANSACTION\nCREATE INDEX CONCURRENTLY ON a (n);")
			provider := func(client *pglock.Client, db *sql.DB, opts ...gooselock.Option) *goose.Provider {
				t.Helper()
				p, err := goose.NewProvider(goose.DialectPostgres, db, files, k.option(t, client, opts...))
				if err != nil {
					t.Fatal(err)
				}
				return p
			}
			end := make(chan error, 1)
			first := provider(locktest.Client(t, url, pglock.WithHolder("the holder")), openDB(t, url, named))
			go func() { _, err := first.Up(t.Context()); end <- err }()
			g.Reached()
			_, err := provider(locktest.Client(t, url), openDB(t, url), gooselock.WithTimeout(time.Second)).Up(t.Context())
			if !errors.Is(err, pglock.ErrNotAcquired) || !errors.Is(err, pglock.ErrTimeout) || !strings.Contains(err.Error(), "the holder") {
				t.Errorf("timed out: %v", err)
			}
			late := k.lock(t, locktest.Client(t, url), openDB(t, url))
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			if err := late(ctx); !errors.Is(err, pglock.ErrNotAcquired) || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("by its context: %v", err)
			}
			waiters := make(chan error, 5)
			for range cap(waiters) {
				p := provider(locktest.Client(t, url), openDB(t, url))
				go func() { _, err := p.Up(t.Context()); waiters <- err }()
			}
			g.Open()
			if err := <-end; err != nil {
				t.Errorf("the holder: %v", err)
			}
			for range cap(waiters) {
				if err := <-waiters; err != nil {
					t.Errorf("a waiter: %v", err)
				}
			}
			locktest.NoLockLeft(t, pgtest.PoolOn(t, url))
		})
	}
}
