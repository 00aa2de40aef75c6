package pglock_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/faultproxy"
	"github.com/pglock/pglock-go/internal/locktest"
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
		ctx, cancel := context.WithTimeout(context.Background(), pgtest.Patience)
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
	return locktest.Open(f.t, pool, append([]pglock.Option{pglock.WithSchema(f.schema)}, opts...)...)
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
	pgtest.Eventually(t, "a grant in time", func() bool {
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

// tried acquires a lock of any kind that is free.
func tried(t *testing.T, l pglock.Lock, opts ...pglock.LeaseOption) *pglock.Lease {
	t.Helper()
	lease, err := l.TryAcquire(t.Context(), opts...)
	if err != nil {
		t.Fatalf("TryAcquire(%q): %v", l.Name(), err)
	}
	return lease
}

// renewed waits for a renewal of the lease.
func renewed(t *testing.T, l *pglock.Lease) {
	t.Helper()
	before := l.Deadline()
	pgtest.Eventually(t, "a renewal", func() bool { return l.Deadline().After(before) })
}

// release releases the lease, also on a machine that stands still for seconds.
func release(t *testing.T, l *pglock.Lease) {
	t.Helper()
	var err error
	pgtest.Eventually(t, "an answer to Release", func() bool {
		err = l.Release(t.Context())
		return !errors.Is(err, pglock.ErrUnavailable)
	})
	if err != nil {
		t.Fatalf("Release(%q): %v", l.Name(), err)
	}
}

// ends waits for a channel to be closed.
func ends(t *testing.T, what string, done <-chan struct{}) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(pgtest.Patience):
		t.Fatalf("not within %v: %s", pgtest.Patience, what)
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

// must ends the test unless err is nil.
func must(t *testing.T, err error) {
	t.Helper()
	locktest.OK(t, err)
}

// begin returns a transaction that the end of the test rolls back.
func begin(t *testing.T, f fixture) pgx.Tx {
	t.Helper()
	tx, err := f.pool.Begin(t.Context())
	must(t, err)
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	return tx
}

// run runs a statement in a transaction.
func run(t *testing.T, tx pgx.Tx, statement string, args ...any) {
	t.Helper()
	_, err := tx.Exec(t.Context(), statement, args...)
	must(t, err)
}

// fails fails the test unless err is each of the wanted errors, on any goroutine.
func fails(t *testing.T, what string, err error, wants ...error) {
	t.Helper()
	for _, want := range wants {
		if !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", what, err, want)
		}
	}
}

// none fails the test unless the statement counts nothing.
func (f fixture) none(what, statement string, args ...any) {
	f.t.Helper()
	is(f, what, 0, statement, args...)
}

// is fails the test unless the statement returns the value.
func is[T comparable](f fixture, what string, want T, statement string, args ...any) {
	f.t.Helper()
	if got := value[T](f, statement, args...); got != want {
		f.t.Errorf("%s: %v, want %v", what, got, want)
	}
}

// bounded returns a context that ends after d.
func bounded(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// proxied returns the fixture as seen through a proxy that makes faults.
func (f fixture) proxied() (*faultproxy.Proxy, fixture) {
	f.t.Helper()
	proxy := faultproxy.New(f.t, address(f.pool.Config().ConnConfig))
	return proxy, f.through(proxy.URL(pgtest.URL(f.t)))
}

// async acquires the lock in the background.
func async(t *testing.T, l pglock.Lock, opts ...pglock.LeaseOption) <-chan *pglock.Lease {
	t.Helper()
	got := make(chan *pglock.Lease, 1)
	go func() {
		lease, err := l.Acquire(t.Context(), opts...)
		check(t, err)
		got <- lease
	}()
	return got
}

// waits makes the client wait for name, and returns when it sleeps with a ticket.
func (f fixture) waits(c *pglock.Client, name string, opts ...pglock.LeaseOption) <-chan *pglock.Lease {
	f.t.Helper()
	got := async(f.t, c.Lock(name), opts...)
	pgtest.Eventually(f.t, "it waits", func() bool { return pglock.HeadWaits(c, name) })
	return got
}

// waitsForAll makes the client wait for the sorted names, and returns when it sleeps with a ticket.
func (f fixture) waitsForAll(c *pglock.Client, names ...string) <-chan *pglock.Lease {
	f.t.Helper()
	got := async(f.t, locktest.All(c, names...))
	pgtest.Eventually(f.t, "it waits for all", func() bool { return pglock.AllWait(c, names...) })
	return got
}

// leaving acquires the lock in the background for a caller that does not get it, and returns why.
func leaving(ctx context.Context, l pglock.Lock, opts ...pglock.LeaseOption) <-chan error {
	ended := make(chan error, 1)
	go func() {
		_, err := l.Acquire(ctx, opts...)
		ended <- err
	}()
	return ended
}

// until waits until the statement returns the value.
func until[T comparable](f fixture, what string, want T, statement string, args ...any) {
	f.t.Helper()
	pgtest.Eventually(f.t, what, func() bool { return value[T](f, statement, args...) == want })
}

// notDone fails the test if the channel is closed.
func notDone(t *testing.T, what string, done <-chan struct{}) {
	t.Helper()
	select {
	case <-done:
		t.Error(what)
	default:
	}
}

// grows fails the test unless the token of the second lease is the larger one.
func grows(t *testing.T, before, after *pglock.Lease) {
	t.Helper()
	if after.Token() <= before.Token() {
		t.Errorf("token %d came after %d", after.Token(), before.Token())
	}
}

// atMost fails the test if something took longer than d.
func atMost(t *testing.T, d time.Duration, what string, began time.Time) {
	t.Helper()
	if took := time.Since(began); took > d {
		t.Errorf("%s: it took %v, at most %v", what, took, d)
	}
}

// inTime fails the test if what it measures takes longer than d. A machine that stands still meanwhile has two more
// attempts, both of which must be in time.
func inTime(t *testing.T, d time.Duration, what string, measure func() time.Duration) {
	t.Helper()
	if measure() <= d {
		return
	}
	for range 2 {
		if took := measure(); took > d {
			t.Fatalf("%s: it took %v, at most %v", what, took, d)
		}
	}
}
