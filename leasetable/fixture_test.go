package leasetable_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/leasetable"
)

// fixture is a schema of a test's own.
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

// on is a fixture on another server or database than the shared one.
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

// open returns a client that the test's end closes.
func (f fixture) open(opts ...leasetable.Option) *leasetable.Client {
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

// openUnclosed returns a client for a test that closes it, or whose servers are
// in no state to release anything when it ends.
func (f fixture) openUnclosed(opts ...leasetable.Option) *leasetable.Client {
	f.t.Helper()
	// With the rights that migrations.WithUser grants, and no others.
	pool := pgtest.UserPool(f.t, f.pool, f.schema)
	c, err := leasetable.Open(f.t.Context(), pool, append([]leasetable.Option{leasetable.WithSchema(f.schema)}, opts...)...)
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

func acquire(t *testing.T, c *leasetable.Client, name string, opts ...leasetable.LeaseOption) *leasetable.Lease {
	t.Helper()
	l, err := c.Acquire(t.Context(), name, opts...)
	if err != nil {
		t.Fatalf("Acquire(%q): %v", name, err)
	}
	return l
}

func try(t *testing.T, c *leasetable.Client, name string, opts ...leasetable.LeaseOption) *leasetable.Lease {
	t.Helper()
	l, err := c.TryAcquire(t.Context(), name, opts...)
	if err != nil {
		t.Fatalf("TryAcquire(%q): %v", name, err)
	}
	return l
}

func release(t *testing.T, l *leasetable.Lease) {
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

// rest waits until d has passed: for what must not happen in the meantime.
func rest(t *testing.T, d time.Duration) {
	t.Helper()
	select {
	case <-time.After(d):
	case <-t.Context().Done():
	}
}
