package pglock_test

import (
	"context"
	"errors"
	"net"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/internal/testserver"
	"github.com/pglock/pglock-go/pglock"
)

func TestP41_OpenRefusesBadOptionsAndLeavesThePoolAlone(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	for name, tc := range map[string]struct {
		opts []pglock.Option
		want error
		rule string
	}{
		"schema empty":       {[]pglock.Option{pglock.WithSchema("")}, pglock.ErrInvalidOption, "empty"},
		"schema too long":    {[]pglock.Option{pglock.WithSchema(strings.Repeat("x", 64))}, pglock.ErrInvalidOption, "64 bytes"},
		"schema of server's": {[]pglock.Option{pglock.WithSchema("pg_x")}, pglock.ErrInvalidOption, "pg_"},
		"schema with NUL":    {[]pglock.Option{pglock.WithSchema("a\x00")}, pglock.ErrInvalidOption, "NUL"},
		"TTL zero":           {[]pglock.Option{pglock.WithTTL(0)}, pglock.ErrInvalidOption, "TTL"},
		"TTL negative":       {[]pglock.Option{pglock.WithTTL(-time.Second)}, pglock.ErrInvalidOption, "TTL"},
		"margin negative":    {[]pglock.Option{pglock.WithSafetyMargin(-1)}, pglock.ErrInvalidOption, "margin"},
		"margin ≥ TTL":       {[]pglock.Option{pglock.WithTTL(time.Second), pglock.WithSafetyMargin(time.Second)}, pglock.ErrInvalidOption, "less than the TTL"},
		"renewal too slow":   {[]pglock.Option{pglock.WithTTL(time.Second), pglock.WithRenewEvery(950 * time.Millisecond)}, pglock.ErrInvalidOption, "the TTL minus the margin"},
		"renewal negative":   {[]pglock.Option{pglock.WithRenewEvery(-1)}, pglock.ErrInvalidOption, "must be 0 or more"},
		"holder empty":       {[]pglock.Option{pglock.WithHolder("")}, pglock.ErrInvalidOption, "holder"},
		"holder not UTF-8":   {[]pglock.Option{pglock.WithHolder("\xff")}, pglock.ErrInvalidOption, "holder"},
		"label with NUL":     {[]pglock.Option{pglock.WithLabels(map[string]string{"k": "\x00"})}, pglock.ErrInvalidOption, "label"},
		"labels too long":    {[]pglock.Option{pglock.WithLabels(map[string]string{"k": strings.Repeat("x", 20000)})}, pglock.ErrInvalidOption, "labels"},
		"wait negative":      {[]pglock.Option{pglock.WithWait(-1)}, pglock.ErrInvalidOption, "wait -1ns is negative: must be 0 or more"},
		"one connection":     {[]pglock.Option{pglock.WithMaxConns(1)}, pglock.ErrInvalidOption, "renewals"},
	} {
		c, err := pglock.Open(t.Context(), pool, tc.opts...)
		if c != nil || !errors.Is(err, tc.want) || !strings.Contains(err.Error(), tc.rule) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := pglock.Open(t.Context(), nil); !errors.Is(err, pglock.ErrInvalidOption) {
		t.Errorf("no pool: %v", err)
	}
	if err := pool.Ping(t.Context()); err != nil {
		t.Errorf("the caller's pool: %v", err)
	}
}

func TestOpenTellsWhatIsWrongWithTheSchema(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	missing := pgtest.SchemaName(t)
	openSchema := func(name string) error {
		c, err := pglock.Open(t.Context(), f.pool, pglock.WithSchema(name))
		if err == nil {
			_ = c.Close(context.Background())
		}
		return err
	}
	check := func(name string, want error, advice string) {
		t.Helper()
		err := openSchema(name)
		var schema *pglock.SchemaError
		if !errors.Is(err, want) || !errors.Is(err, pglock.ErrSchema) || !errors.As(err, &schema) || !strings.Contains(err.Error(), advice) {
			t.Errorf("want %v with %q, got %v", want, advice, err)
		}
	}
	check(missing, schema.ErrMissing, "pglock migrate up")
	f.sql("CREATE OR REPLACE FUNCTION pglock.pglock_schema_version() RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT 0'")
	check(f.schema, schema.ErrOutdated, "pglock migrate up")
	f.sql("CREATE OR REPLACE FUNCTION pglock.pglock_schema_version() RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT 99'")
	check(f.schema, schema.ErrNewer, "newer pglock")

	f.sql("CREATE ROLE \"nobody of " + strings.ReplaceAll(f.schema, `"`, `""`) + "\" LOGIN PASSWORD 'secret'")
	t.Cleanup(func() {
		_, _ = f.pool.Exec(context.Background(), "DROP ROLE \"nobody of "+strings.ReplaceAll(f.schema, `"`, `""`)+"\"")
	})
	f.pool = pgtest.Pool(t, func(c *pgxpool.Config) {
		c.ConnConfig.User, c.ConnConfig.Password = "nobody of "+f.schema, "secret"
	})
	if err := openSchema(f.schema); !errors.Is(err, pglock.ErrPrivilege) {
		t.Errorf("a role without rights: %v", err)
	}
}

func TestOpenUnreachable(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts nothing: the handshake gets no answer
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	refused := closed.Addr().String()
	closed.Close()
	// The shared server may require no password; a private server always does.
	good, err := url.Parse(pgtest.Server(t, testserver.Options{}).URL())
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		u    *url.URL
		want error
	}{
		"refused":        {&url.URL{Scheme: "postgres", Host: refused, User: url.UserPassword("u", "s3cret"), Path: "/db"}, pglock.ErrUnavailable},
		"silent":         {&url.URL{Scheme: "postgres", Host: silent.Addr().String(), User: url.UserPassword("u", "s3cret"), Path: "/db"}, pglock.ErrUnavailable},
		"wrong password": {&url.URL{Scheme: "postgres", Host: good.Host, User: url.UserPassword(good.User.Username(), "s3cret"), Path: good.Path}, pglock.ErrLogin},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		if errors.Is(tc.want, pglock.ErrLogin) {
			ctx, cancel = context.WithTimeout(t.Context(), 20*time.Second)
		}
		_, err := pglock.Open(ctx, pgtest.PoolOn(t, tc.u.String()))
		cancel()
		if !errors.Is(err, tc.want) || errors.Is(err, pglock.ErrLogin) && errors.Is(err, pglock.ErrUnavailable) {
			t.Errorf("%s: %v", name, err)
		}
		if strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: the error shows the password: %v", name, err)
		}
	}
}

func TestInvalidNames(t *testing.T) {
	t.Parallel()
	c := newFixture(t).open()
	for _, name := range []string{"", "a\x00b", "\xff", strings.Repeat("x", 513)} {
		if _, err := c.TryAcquire(t.Context(), name); !errors.Is(err, pglock.ErrInvalidOption) {
			t.Errorf("TryAcquire(%.10q): %v", name, err)
		}
		if _, err := c.Acquire(t.Context(), name); !errors.Is(err, pglock.ErrInvalidOption) {
			t.Errorf("Acquire(%.10q): %v", name, err)
		}
		if _, err := c.Get(t.Context(), name); !errors.Is(err, pglock.ErrInvalidOption) {
			t.Errorf("Get(%.10q): %v", name, err)
		}
	}
	longest := strings.Repeat("ü", 256)
	if l := try(t, c, longest); l.Name() != longest {
		t.Error("the longest name was changed")
	}
	if _, err := c.TryAcquire(t.Context(), "n", pglock.WithTTL(-1)); !errors.Is(err, pglock.ErrInvalidOption) {
		t.Errorf("a lease's bad option: %v", err)
	}
	if _, err := c.TryAcquire(t.Context(), "n", pglock.WithTTL(time.Second), pglock.WithSafetyMargin(time.Minute)); !errors.Is(err, pglock.ErrInvalidOption) {
		t.Errorf("a lease's conflicting options: %v", err)
	}
}

func TestCloseReleasesAndWakes(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.openUnclosed()
	var held []*pglock.Lease
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		held = append(held, try(t, c, name))
	}
	waiting := make(chan error, 1)
	go func() {
		_, err := c.Acquire(t.Context(), "a")
		waiting <- err
	}()
	rest(t, 50*time.Millisecond)
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			if err := c.Close(t.Context()); err != nil {
				t.Errorf("Close: %v", err)
			}
		})
	}
	wg.Wait()
	if err := <-waiting; !errors.Is(err, pglock.ErrClosed) || !errors.Is(err, pglock.ErrNotAcquired) {
		t.Errorf("a waiter got %v", err)
	}
	for _, l := range held {
		if err := context.Cause(l.Context()); !errors.Is(err, pglock.ErrReleased) || !errors.Is(err, pglock.ErrClosed) {
			t.Errorf("%s ended by %v", l.Name(), err)
		}
		if err := l.Release(t.Context()); err != nil {
			t.Errorf("Release after Close: %v", err)
		}
	}
	if n := value[int](f, "SELECT count(*) FROM pglock.distributed_locks WHERE holder IS NOT NULL"); n != 0 {
		t.Errorf("%d locks are still held", n)
	}
	for name, err := range map[string]error{
		"Acquire":    second(c.Acquire(t.Context(), "n")),
		"TryAcquire": second(c.TryAcquire(t.Context(), "n")),
		"Get":        second(c.Get(t.Context(), "n")),
		"Prune":      second(c.Prune(t.Context(), 0)),
	} {
		if !errors.Is(err, pglock.ErrClosed) {
			t.Errorf("%s after Close: %v", name, err)
		}
	}
}

// TestCloseRepeatsNoLoss: Close does not report a lease whose loss its holder knows, even if it was
// lost during Close.
func TestCloseRepeatsNoLoss(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.openUnclosed()
	l := try(t, c, "n", pglock.WithRenewEvery(0))
	f.sql("UPDATE pglock.distributed_locks SET token = pglock.next_fencing_token(), holder = 'thief'")
	if err := l.Extend(t.Context(), time.Minute); !errors.Is(err, pglock.ErrLost) {
		t.Fatalf("after a takeover: %v", err)
	}
	pglock.ReleaseAgainOnClose(c, l)
	if err := c.Close(t.Context()); err != nil {
		t.Errorf("Close: %v", err)
	}
}

func second[T any](_ T, err error) error { return err }

// TestCloseIsBoundedByItsContext closes a client of a halted server, with calls in progress.
func TestCloseIsBoundedByItsContext(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t, testserver.Options{})
	f := on(t, server.URL())
	c := f.openUnclosed()
	l := try(t, c, "n", pglock.WithRenewEvery(50*time.Millisecond))
	if err := server.Pause(); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() { _, _ = c.Get(t.Context(), "n") })
	wg.Go(func() { _ = l.Extend(t.Context(), time.Hour) })
	wg.Go(func() { _, _ = c.Prune(t.Context(), 0) })
	wg.Go(func() { _, _ = c.Acquire(t.Context(), "n") })
	rest(t, 200*time.Millisecond) // a renewal is in progress too
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		if err := c.Close(ctx); err == nil {
			t.Error("Close says that all was released")
		}
	}()
	// Each statement may take seconds; Close must not wait for them.
	within(t, 2*time.Second, "Close", closed)
	if err := server.Resume(); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
}

// TestStaleConnectionsCostNoCall ends the idle connections on the server, as a restart does: every
// call succeeds nevertheless.
func TestStaleConnectionsCostNoCall(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	f := on(t, url)
	c := f.open()
	l := try(t, c, "held")
	restart := func() {
		t.Helper()
		var wg sync.WaitGroup
		for range 8 { // fills the pool
			wg.Go(func() { _, _ = c.Get(t.Context(), "held") })
		}
		wg.Wait()
		pgtest.Eventually(t, 5*time.Second, "the connections end", func() bool {
			f.sql(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity -- also those that were just being opened
			       WHERE datname = current_database() AND application_name LIKE '%pglock%'`)
			return value[int](f, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE '%pglock%'`) == 0
		})
	}
	for name, call := range map[string]func() error{
		"TryAcquire": func() error {
			l, err := c.TryAcquire(t.Context(), "n")
			if err != nil {
				return err
			}
			return l.Release(t.Context())
		},
		"Get":    func() error { _, err := c.Get(t.Context(), "held"); return err },
		"Extend": func() error { return l.Extend(t.Context(), time.Hour) },
		"Prune":  func() error { _, err := c.Prune(t.Context(), time.Hour); return err },
	} {
		restart()
		if err := call(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	restart()
	release(t, l)
}
