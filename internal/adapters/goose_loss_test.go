package adapters_test

import (
	"context"
	"errors"
	"testing"
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
	for name, k := range kinds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := pgtest.Database(t)
			pool := pgtest.PoolOn(t, url)
			g := locktest.NewGate(t, pool)
			option, l, err := k(locktest.Client(t, url, pglock.WithTTL(time.Second)))
			if err != nil {
				t.Fatal(err)
			}
			p, err := goose.NewProvider(goose.DialectPostgres, openDB(t, url), gooseFiles("CREATE TABLE a ();", g.SQL(), "CREATE TABLE c ();"), option)
			if err != nil {
				t.Fatal(err)
			}
			ctx := t.Context()
			lease, leased := l.(*gooselock.Locker)
			if leased {
				c, stop := lease.StopOnLoss(ctx)
				defer stop()
				ctx = c
			}
			end := make(chan error, 1)
			go func() { _, err := p.Up(ctx); end <- err }()
			session := g.Reached()
			if leased {
				locktest.Exec(t, pool, "UPDATE pglock.distributed_locks SET token = pglock.next_fencing_token(), version = version + 1, expires_at = clock_timestamp() WHERE holder IS NOT NULL")
			} else {
				locktest.Exec(t, pool, "SELECT pg_terminate_backend($1)", session)
			}
			if err := <-end; err == nil || leased && (!errors.Is(err, pglock.ErrLost) || !errors.Is(context.Cause(ctx), pglock.ErrLost)) {
				t.Errorf("the run ended with %v, the cause %v", err, context.Cause(ctx))
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
	if _, err := gooselock.NewSessionLocker("m", gooselock.WithTimeout(0)); !errors.Is(err, pglock.ErrInvalidOption) {
		t.Errorf("no timeout: %v", err)
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
		p := kinds["Locker"].provider(t, client, db, gooseFiles("CREATE TABLE a (n int);", "-- +goose NO TRANSACTION\nCREATE INDEX CONCURRENTLY ON a (n);"))
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
