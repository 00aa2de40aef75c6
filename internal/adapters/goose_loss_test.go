package adapters_test

import (
	"context"
	"errors"
	"testing"
	"testing/fstest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/pressly/goose/v3"

	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/gooselock"
)

// TestGooseStopsWhenItsLockIsLost before the next migration.
func TestGooseStopsWhenItsLockIsLost(t *testing.T) {
	t.Parallel()
	for name, run := range map[string]func(t *testing.T, url string, pool *pgxpool.Pool, g *locktest.Gate, files fstest.MapFS) (lose func(), up func() error){
		"Locker": func(t *testing.T, url string, pool *pgxpool.Pool, _ *locktest.Gate, files fstest.MapFS) (func(), func() error) {
			t.Helper()
			l, err := gooselock.NewLocker(locktest.Client(t, url, pglock.WithTTL(time.Second)), "m")
			if err != nil {
				t.Fatal(err)
			}
			p, err := goose.NewProvider(goose.DialectPostgres, openDB(t, url), files, goose.WithLocker(l))
			if err != nil {
				t.Fatal(err)
			}
			return func() {
					locktest.Exec(t, pool, "UPDATE pglock.distributed_locks SET token = pglock.next_fencing_token(), version = version + 1, expires_at = clock_timestamp() WHERE holder IS NOT NULL")
				}, func() error {
					ctx, stop := l.StopOnLoss(t.Context())
					defer stop()
					_, err := p.Up(ctx)
					if !errors.Is(context.Cause(ctx), pglock.ErrLost) {
						t.Errorf("the cause: %v", context.Cause(ctx))
					}
					return err
				}
		},
		"SessionLocker": func(t *testing.T, url string, pool *pgxpool.Pool, g *locktest.Gate, files fstest.MapFS) (func(), func() error) {
			t.Helper()
			l, err := gooselock.NewSessionLocker("m")
			if err != nil {
				t.Fatal(err)
			}
			p, err := goose.NewProvider(goose.DialectPostgres, openDB(t, url), files, goose.WithSessionLocker(l))
			if err != nil {
				t.Fatal(err)
			}
			return func() { locktest.Exec(t, pool, "SELECT pg_terminate_backend($1)", g.Reached()) },
				func() error { _, err := p.Up(t.Context()); return err }
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := pgtest.Database(t)
			pool := pgtest.PoolOn(t, url)
			g := locktest.NewGate(t, pool)
			lose, up := run(t, url, pool, g, gooseFiles("CREATE TABLE a ();", g.SQL(), "CREATE TABLE c ();"))
			end := make(chan error, 1)
			go func() { end <- up() }()
			g.Reached()
			lose()
			if err := <-end; err == nil || name == "Locker" && !errors.Is(err, pglock.ErrLost) {
				t.Errorf("the run ended with %v", err)
			}
			if locktest.Scan[bool](t, pool, "SELECT to_regclass('c') IS NOT NULL") {
				t.Error("the next migration was begun")
			}
		})
	}
}

// TestP28_P35_GooseRefusesSharedSessions: SessionLock refuses a pooler in transaction mode, and
// SessionUnlock reports a lock that the session no longer holds.
func TestP28_P35_GooseRefusesSharedSessions(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	l, err := gooselock.NewSessionLocker("m")
	if err != nil {
		t.Fatal(err)
	}
	simple := func(c *pgx.ConnConfig) { c.DefaultQueryExecMode = pgx.QueryExecModeExec }
	for mode, want := range map[string]error{"transaction": advisory.ErrPooled, "session": nil} {
		conn, err := openDB(t, pgtest.Pooler(t, url, mode), simple).Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		err = l.SessionLock(t.Context(), conn)
		if !errors.Is(err, want) {
			t.Errorf("in %s mode: %v", mode, err)
		}
		if err == nil {
			if err := l.SessionUnlock(t.Context(), conn); err != nil {
				t.Errorf("in %s mode: %v", mode, err)
			}
		}
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	}
	p, err := goose.NewProvider(goose.DialectPostgres, openDB(t, url), gooseFiles("SELECT pg_advisory_unlock_all();"), goose.WithSessionLocker(l))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Up(t.Context()); !errors.Is(err, pglock.ErrLost) {
		t.Errorf("a migration that releases the lock: %v", err)
	}
	locktest.NoLockLeft(t, pgtest.PoolOn(t, url))
	for name, o := range map[string]gooselock.Option{"timeout": gooselock.WithTimeout(0)} {
		if _, err := gooselock.NewSessionLocker("m", o); !errors.Is(err, pglock.ErrInvalidOption) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := gooselock.NewSessionLocker(""); !errors.Is(err, pglock.ErrInvalidOption) {
		t.Errorf("no name: %v", err)
	}
	if _, err := gooselock.NewLocker(nil, "m"); !errors.Is(err, pglock.ErrInvalidOption) {
		t.Errorf("no client: %v", err)
	}
}

// TestGooseBehindAPoolerInTransactionMode: a lease works there.
func TestGooseBehindAPoolerInTransactionMode(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	locktest.Client(t, url) // creates the tables
	through := pgtest.Pooler(t, url, "transaction")
	end := make(chan error, 4)
	for range cap(end) {
		pool := pgtest.PoolOn(t, through, func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec })
		client, err := pglock.Open(t.Context(), pool)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = client.Close(context.Background()) })
		db := openDB(t, through, func(c *pgx.ConnConfig) { c.DefaultQueryExecMode = pgx.QueryExecModeExec })
		p, err := goose.NewProvider(goose.DialectPostgres, db, gooseFiles("CREATE TABLE a (n int);", "-- +goose NO TRANSACTION\nCREATE INDEX CONCURRENTLY ON a (n);"), kinds[1].option(t, client))
		if err != nil {
			t.Fatal(err)
		}
		go func() { _, err := p.Up(t.Context()); end <- err }()
	}
	for range cap(end) {
		if err := <-end; err != nil {
			t.Error(err)
		}
	}
	if n := locktest.Scan[int](t, pgtest.PoolOn(t, url), "SELECT count(*) FROM goose_db_version WHERE version_id > 0"); n != 2 {
		t.Errorf("%d migrations are recorded", n)
	}
	locktest.NoLockLeft(t, pgtest.PoolOn(t, url))
}
