package runner_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"sync"
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

// note makes a migration enter its version into the journal of its database.
func note(version int) string { return fmt.Sprintf("INSERT INTO journal VALUES (%d);", version) }

// fixture is a test with a database that has a journal, and a gate for migrations.
type fixture struct {
	*testing.T
	url   string
	pool  *pgxpool.Pool
	gate  *locktest.Gate
	lease bool // whether the runs acquire a lease, instead of an advisory lock
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{T: t, url: pgtest.Database(t)}
	f.pool = pgtest.PoolOn(t, f.url)
	f.exec("CREATE TABLE journal (version int)")
	f.gate = locktest.NewGate(t, f.pool)
	return f
}

// eachLock runs the test with an advisory lock and with a lease. No lock may be left.
func eachLock(t *testing.T, test func(f *fixture)) {
	t.Helper()
	for _, kind := range []string{"advisory", "lease"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			f.lease = kind == "lease"
			test(f)
			f.noLockLeft()
		})
	}
}

func (f *fixture) noLockLeft() {
	f.Helper()
	f.gate.Open()
	locktest.NoLockLeft(f.T, f.pool)
}

func (f *fixture) exec(sql string, args ...any) { f.Helper(); locktest.Exec(f.T, f.pool, sql, args...) }

// opts returns the options of a replica. Each one that acquires leases has a client of its own. No lease ends because
// the machine stands still, and a renewal soon tells of its loss.
func (f *fixture) opts(more ...runner.Option) []runner.Option {
	f.Helper()
	if !f.lease {
		return more
	}
	return append([]runner.Option{runner.WithLease(locktest.Client(f.T, f.url), pglock.WithTTL(pgtest.Patience), pglock.WithRenewEvery(time.Second))}, more...)
}

func (f *fixture) run(src runner.Source, opts ...runner.Option) error {
	f.Helper()
	return <-f.start(src, opts...)
}

// start begins a run. The channel receives its error.
func (f *fixture) start(src runner.Source, opts ...runner.Option) <-chan error {
	f.Helper()
	opts = f.opts(opts...)
	end := make(chan error, 1)
	go func() { end <- runner.Run(f.Context(), src, f.pool, opts...) }()
	return end
}

// wantNil fails unless all runs end without an error.
func (f *fixture) wantNil(ends ...<-chan error) {
	f.Helper()
	for _, end := range ends {
		if err := <-end; err != nil {
			f.Error(err)
		}
	}
}

// want fails unless the version table says that, and each version up to last ran once.
func (f *fixture) want(version int, dirty bool, last int) {
	f.Helper()
	if got := locktest.Scan[string](f.T, f.pool, "SELECT version || ' ' || dirty FROM schema_migrations"); got != fmt.Sprint(version, dirty) {
		f.Errorf("version and dirty: %s, want %d %v", got, version, dirty)
	}
	var want []string
	for i := range last {
		want = append(want, fmt.Sprint(i+1))
	}
	got := locktest.Scan[string](f.T, f.pool, "SELECT coalesce(string_agg(version::text, ' ' ORDER BY version), '') FROM journal")
	if got != strings.Join(want, " ") {
		f.Errorf("migrations that ran: %s, want %v", got, want)
	}
}

// endLock ends the lock of the only holder: it terminates the session, or takes over the lease.
func (f *fixture) endLock() {
	f.Helper()
	if f.lease {
		f.exec("UPDATE pglock.distributed_locks SET token = pglock.next_fencing_token(), version = version + 1, expires_at = clock_timestamp() WHERE holder IS NOT NULL")
		return
	}
	f.endSessions("objid <> $1", f.gate.Key)
}

// endSessions terminates the one session that holds an advisory lock for which the condition is true.
func (f *fixture) endSessions(condition string, args ...any) {
	f.Helper()
	if n := locktest.Scan[int](f.T, f.pool, "SELECT count(pg_terminate_backend(pid)) FROM pg_locks WHERE locktype = 'advisory' AND granted AND mode = 'ExclusiveLock' AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND "+condition, args...); n != 1 {
		f.Fatalf("%d sessions hold the lock", n)
	}
}

// waitCounter has the holder in the last log of each replica that waits. It is a slog.Handler.
type waitCounter struct {
	mu   sync.Mutex
	last map[string]string
}

// option logs the waits of a replica.
func (l *waitCounter) option(replica string) runner.Option {
	return runner.WithReports(20*time.Millisecond, slog.New(waits{l, replica}))
}

// reached waits until n replicas have logged that they wait, and returns for whom.
func (l *waitCounter) reached(t *testing.T, n int) (last map[string]string) {
	t.Helper()
	pgtest.Eventually(t, fmt.Sprintf("%d replicas wait", n), func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		last = maps.Clone(l.last)
		return len(last) == n
	})
	return last
}

type waits struct {
	*waitCounter
	replica string
}

func (w waits) Enabled(context.Context, slog.Level) bool { return true }
func (w waits) WithAttrs([]slog.Attr) slog.Handler       { return w }
func (w waits) WithGroup(string) slog.Handler            { return w }

func (w waits) Handle(_ context.Context, r slog.Record) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.last == nil {
		w.last = map[string]string{}
	}
	if _, holder, ok := strings.Cut(r.Message, " for "); ok {
		w.last[w.replica] = holder
	}
	return nil
}

var ok = locktest.OK
