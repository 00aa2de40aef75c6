package runner_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/runner"
)

// source returns a source of the SQL texts: 1_m, 2_m, and so on.
func source(texts ...string) runner.Source {
	files := fstest.MapFS{}
	for i, sql := range texts {
		files[fmt.Sprintf("%03d_m.up.sql", i+1)] = &fstest.MapFile{Data: []byte(sql)}
	}
	return runner.Files(files, ".")
}

// newDatabase returns a database with a journal, in which note makes a migration enter its version,
// and a gate for migrations.
func newDatabase(t *testing.T) (url string, pool *pgxpool.Pool, note func(version int) string, g *locktest.Gate) {
	t.Helper()
	url = pgtest.Database(t)
	pool = pgtest.PoolOn(t, url)
	return url, pool, journal(t, pool), locktest.NewGate(t, pool)
}

// journal creates a table in which migrations enter their versions, and returns the statement for
// it.
func journal(t *testing.T, pool *pgxpool.Pool) (note func(version int) string) {
	t.Helper()
	locktest.Exec(t, pool, "CREATE TABLE journal (version int)")
	return func(version int) string { return fmt.Sprintf("INSERT INTO journal VALUES (%d);", version) }
}

// wantJournal fails unless each version up to last ran once.
func wantJournal(t *testing.T, pool *pgxpool.Pool, last int) {
	t.Helper()
	var got, want []string
	if err := pool.QueryRow(t.Context(), "SELECT coalesce(array_agg(version::text ORDER BY version), '{}') FROM journal").Scan(&got); err != nil {
		t.Fatal(err)
	}
	for i := range last {
		want = append(want, fmt.Sprint(i+1))
	}
	if strings.Join(got, " ") != strings.Join(want, " ") {
		t.Errorf("migrations that ran: %v, want %v", got, want)
	}
}

func wantVersion(t *testing.T, pool *pgxpool.Pool, version int, dirty bool) {
	t.Helper()
	var gotVersion int
	var gotDirty bool
	if err := pool.QueryRow(t.Context(), "SELECT version, dirty FROM schema_migrations").Scan(&gotVersion, &gotDirty); err != nil {
		t.Fatal(err)
	}
	if gotVersion != version || gotDirty != dirty {
		t.Errorf("version %d, dirty %v, want %d, %v", gotVersion, gotDirty, version, dirty)
	}
}

// lockKind is a kind of lock for a run.
type lockKind struct {
	name string
	opts func(t *testing.T, url string) []runner.RunOption
}

// lockKinds are an advisory lock and a lease. Each replica has a client of its own.
var lockKinds = []lockKind{
	{"advisory", func(*testing.T, string) []runner.RunOption { return nil }},
	{"lease", func(t *testing.T, url string) []runner.RunOption {
		t.Helper()
		return []runner.RunOption{runner.WithLease(locktest.Client(t, url), pglock.WithTTL(3*time.Second))}
	}},
}

func eachLock(t *testing.T, test func(t *testing.T, kind lockKind)) {
	t.Helper()
	for _, kind := range lockKinds {
		t.Run(kind.name, func(t *testing.T) {
			t.Parallel()
			test(t, kind)
		})
	}
}

// endLock ends the lock of the only holder: it terminates the session, or takes over the lease.
func endLock(t *testing.T, pool *pgxpool.Pool, kind lockKind, g *locktest.Gate) {
	t.Helper()
	if kind.name == "lease" {
		locktest.Exec(t, pool, "UPDATE pglock.distributed_locks SET token = pglock.next_fencing_token(), version = version + 1, expires_at = clock_timestamp() WHERE holder IS NOT NULL")
		return
	}
	if n := locktest.Scan[int](t, pool, "SELECT count(pg_terminate_backend(pid)) FROM pg_locks WHERE locktype = 'advisory' AND granted AND mode = 'ExclusiveLock' AND objid <> $1 AND database = (SELECT oid FROM pg_database WHERE datname = current_database())", g.Key); n != 1 {
		t.Fatalf("%d sessions hold the lock", n)
	}
}
