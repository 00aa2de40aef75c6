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

// kind is a kind of lock for goose. Its Locker locks as goose does with the option.
type kind func(client *pglock.Client, opts ...gooselock.Option) (goose.ProviderOption, lock.Locker, error)

var kinds = map[string]kind{
	"SessionLocker": func(_ *pglock.Client, opts ...gooselock.Option) (goose.ProviderOption, lock.Locker, error) {
		l, err := gooselock.NewSessionLocker("m", opts...)
		return goose.WithSessionLocker(l), &onConnection{session: l}, err
	},
	"Locker": func(client *pglock.Client, opts ...gooselock.Option) (goose.ProviderOption, lock.Locker, error) {
		l, err := gooselock.NewLocker(client, "m", opts...)
		return goose.WithLocker(l), l, err
	},
}

// provider returns a goose provider that locks with the kind.
func (k kind) provider(t *testing.T, client *pglock.Client, db *sql.DB, files fstest.MapFS, opts ...gooselock.Option) *goose.Provider {
	t.Helper()
	option, _, err := k(client, opts...)
	if err != nil {
		t.Fatal(err)
	}
	p, err := goose.NewProvider(goose.DialectPostgres, db, files, option)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestGoosesOwnSuite runs goose's locktesting on both kinds.
func TestGoosesOwnSuite(t *testing.T) {
	t.Parallel()
	for name, k := range kinds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := pgtest.Database(t)
			client := locktest.Client(t, url)
			locktesting.TestProviderLocking(t, func(t *testing.T) *goose.Provider {
				t.Helper()
				return k.provider(t, client, openDB(t, url), gooseFiles("CREATE TABLE a ();", "CREATE TABLE b ();", "SELECT 1;"))
			})
			locktesting.TestConcurrentLocking(t, openDB(t, url), func(t *testing.T) lock.Locker {
				t.Helper()
				_, l, err := k(client)
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
	for name, k := range kinds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := pgtest.Database(t)
			pool := pgtest.PoolOn(t, url)
			g := locktest.NewGate(t, pool)
			named := func(c *pgx.ConnConfig) { c.RuntimeParams["application_name"] = "the holder" }
			files := gooseFiles("CREATE TABLE a (n int);", g.SQL(), "-- +goose NO TRANSACTION\nCREATE INDEX CONCURRENTLY ON a (n);")
			end := make(chan error, 1)
			first := k.provider(t, locktest.Client(t, url, pglock.WithHolder("the holder")), openDB(t, url, named), files)
			go func() { _, err := first.Up(t.Context()); end <- err }()
			g.Reached()
			_, err := k.provider(t, locktest.Client(t, url), openDB(t, url), files, gooselock.WithTimeout(5*time.Second)).Up(t.Context())
			if !errors.Is(err, pglock.ErrNotAcquired) || !errors.Is(err, pglock.ErrTimeout) || !strings.Contains(err.Error(), "the holder") {
				t.Errorf("timed out: %v", err)
			}
			_, late, err := k(locktest.Client(t, url))
			db := openDB(t, url)
			if err := errors.Join(err, db.PingContext(t.Context())); err != nil { // the wait has no time to connect
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			if err := late.Lock(ctx, db); !errors.Is(err, pglock.ErrNotAcquired) || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("by its context: %v", err)
			}
			waiters := make(chan error, 5)
			for range cap(waiters) {
				p := k.provider(t, locktest.Client(t, url), openDB(t, url), files)
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
