package pglock_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/pglock"
)

// fixture is a schema for one test.
type fixture struct {
	t      *testing.T
	pool   *pgxpool.Pool
	schema string
}

func newFixture(t *testing.T) fixture {
	t.Helper()
	pool := pgtest.Pool(t)
	return fixture{t, pool, pgtest.Schema(t, pool)}
}

// on returns a fixture on another server or database than the shared one.
func on(t *testing.T, url string) fixture {
	t.Helper()
	pool := pgtest.PoolOn(t, url)
	return fixture{t, pool, pgtest.Schema(t, pool)}
}

// through returns the fixture as seen through another address.
func (f fixture) through(url string) fixture {
	f.t.Helper()
	return fixture{f.t, pgtest.PoolOn(f.t, url), f.schema}
}

// open returns a client that is closed at the end of the test.
func (f fixture) open(opts ...pglock.Option) *pglock.Client {
	f.t.Helper()
	c := f.openUnclosed(opts...)
	f.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := c.Close(ctx); err != nil {
			f.t.Errorf("Close: %v", err)
		}
	})
	return c
}

// openUnclosed returns a client for a test that closes it, or whose servers can't release anything
// at the end.
func (f fixture) openUnclosed(opts ...pglock.Option) *pglock.Client {
	f.t.Helper()
	// With the rights that migrations.WithUser grants, and no others.
	pool := pgtest.UserPool(f.t, f.pool, f.schema)
	c, err := pglock.Open(f.t.Context(), pool, append([]pglock.Option{pglock.WithSchema(f.schema)}, opts...)...)
	if err != nil {
		f.t.Fatalf("Open: %v", err)
	}
	return c
}

// named returns the statement with each "pglock." replaced by the fixture's schema.
func (f fixture) named(statement string) string { return schema.Render(statement, f.schema) }

// sql runs a statement, written for the default schema.
func (f fixture) sql(statement string, args ...any) {
	f.t.Helper()
	if _, err := f.pool.Exec(f.t.Context(), f.named(statement), args...); err != nil {
		f.t.Fatalf("%s: %v", statement, err)
	}
}

// value reads one value with a statement written for the default schema.
func value[T any](f fixture, statement string, args ...any) T {
	f.t.Helper()
	var v T
	if err := f.pool.QueryRow(f.t.Context(), f.named(statement), args...).Scan(&v); err != nil {
		f.t.Fatalf("%s: %v", statement, err)
	}
	return v
}

func acquire(t *testing.T, c *pglock.Client, name string, opts ...pglock.LeaseOption) *pglock.Lease {
	t.Helper()
	l, err := c.Acquire(t.Context(), name, opts...)
	if err != nil {
		t.Fatalf("Acquire(%q): %v", name, err)
	}
	return l
}

// try acquires a lock that is free. On a busy machine a grant with a short TTL may arrive too late, and
// is revoked. Then try tries again.
func try(t *testing.T, c *pglock.Client, name string, opts ...pglock.LeaseOption) (l *pglock.Lease) {
	t.Helper()
	late := false
	pgtest.Eventually(t, 10*time.Second, "a grant in time", func() bool {
		var err error
		l, err = c.TryAcquire(t.Context(), name, opts...)
		late = late || errors.Is(err, pglock.ErrLateGrant)
		if err != nil && !late {
			t.Fatalf("TryAcquire(%q): %v", name, err)
		}
		return err == nil
	})
	return l
}

func release(t *testing.T, l *pglock.Lease) {
	t.Helper()
	if err := l.Release(t.Context()); err != nil {
		t.Fatalf("Release(%q): %v", l.Name(), err)
	}
}

// within waits for a channel to be closed.
func within(t *testing.T, d time.Duration, what string, done <-chan struct{}) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(d):
		t.Fatalf("%s: not within %v", what, d)
	}
}

// rest waits for d, during which something must not happen.
func rest(t *testing.T, d time.Duration) {
	t.Helper()
	select {
	case <-time.After(d):
	case <-t.Context().Done():
	}
}

// logBuffer collects log output.
type logBuffer struct {
	mu   sync.Mutex
	text strings.Builder
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// TestAStepOfPruningCostsTheSame for any number of rows, wherever in the table it begins. The
// control is a full scan of the table, as in an earlier version.
func TestAStepOfPruningCostsTheSame(t *testing.T) {
	t.Parallel()
	const names = 200_000
	f := newFixture(t)
	f.sql(`INSERT INTO pglock.distributed_locks (name, token, version, acquired_at, expires_at)
	       SELECT md5(i::text), pglock.next_fencing_token(), 1, now(), '-infinity' FROM generate_series(1, $1::int) AS i`, names)
	f.sql("ANALYZE pglock.distributed_locks")
	whole := pages(f, "SELECT name FROM pglock.distributed_locks WHERE expires_at <= clock_timestamp() AND acquired_at < clock_timestamp() - interval '1 day'")
	for _, after := range []string{"", "8", "f"} {
		step := pages(f, pglock.PruneSQL, int64(24*time.Hour/time.Microsecond), after)
		t.Logf("a step after %q touches %d pages, all rows are on %d", after, step, whole)
		if step == 0 || step > 2000 || whole < 3000 {
			t.Errorf("a step after %q touches %d pages, the control %d", after, step, whole)
		}
	}
}

// option makes a client log to b.
func (b *logBuffer) option() pglock.Option {
	return pglock.WithLogger(slog.New(slog.NewTextHandler(b, nil)))
}

// check fails the test after an error, on any goroutine.
func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}
