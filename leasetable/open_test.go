package leasetable_test

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
	"github.com/pglock/pglock-go/internal/testserver"
	"github.com/pglock/pglock-go/leasetable"
)

func TestP41_OpenRefusesBadOptionsAndLeavesThePoolAlone(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	for name, tc := range map[string]struct {
		opts []leasetable.Option
		want error
		rule string
	}{
		"schema empty":       {[]leasetable.Option{leasetable.WithSchema("")}, leasetable.ErrInvalidSchema, "empty"},
		"schema too long":    {[]leasetable.Option{leasetable.WithSchema(strings.Repeat("x", 64))}, leasetable.ErrInvalidSchema, "64 bytes"},
		"schema of server's": {[]leasetable.Option{leasetable.WithSchema("pg_x")}, leasetable.ErrInvalidSchema, "pg_"},
		"schema with NUL":    {[]leasetable.Option{leasetable.WithSchema("a\x00")}, leasetable.ErrInvalidSchema, "NUL"},
		"TTL zero":           {[]leasetable.Option{leasetable.WithTTL(0)}, leasetable.ErrInvalidOption, "TTL"},
		"TTL negative":       {[]leasetable.Option{leasetable.WithTTL(-time.Second)}, leasetable.ErrInvalidOption, "TTL"},
		"margin negative":    {[]leasetable.Option{leasetable.WithSafetyMargin(-1)}, leasetable.ErrInvalidOption, "margin"},
		"margin ≥ TTL":       {[]leasetable.Option{leasetable.WithTTL(time.Second), leasetable.WithSafetyMargin(time.Second)}, leasetable.ErrInvalidOption, "less than the TTL"},
		"renewal too slow":   {[]leasetable.Option{leasetable.WithTTL(time.Second), leasetable.WithRenewEvery(950 * time.Millisecond)}, leasetable.ErrInvalidOption, "the TTL minus the margin"},
		"renewal zero":       {[]leasetable.Option{leasetable.WithRenewEvery(0)}, leasetable.ErrInvalidOption, "greater than 0"},
		"holder empty":       {[]leasetable.Option{leasetable.WithHolder("")}, leasetable.ErrInvalidOption, "holder"},
		"holder not UTF-8":   {[]leasetable.Option{leasetable.WithHolder("\xff")}, leasetable.ErrInvalidOption, "holder"},
		"label with NUL":     {[]leasetable.Option{leasetable.WithLabels(map[string]string{"k": "\x00"})}, leasetable.ErrInvalidOption, "label"},
		"labels too long":    {[]leasetable.Option{leasetable.WithLabels(map[string]string{"k": strings.Repeat("x", 20000)})}, leasetable.ErrInvalidOption, "labels"},
		"wait negative":      {[]leasetable.Option{leasetable.WithWait(-1)}, leasetable.ErrInvalidOption, "wait -1ns is negative: must be 0 or more"},
		"one connection":     {[]leasetable.Option{leasetable.WithMaxConns(1)}, leasetable.ErrInvalidOption, "renewals"},
	} {
		c, err := leasetable.Open(t.Context(), pool, tc.opts...)
		if c != nil || !errors.Is(err, tc.want) || !strings.Contains(err.Error(), tc.rule) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := leasetable.Open(t.Context(), nil); !errors.Is(err, leasetable.ErrInvalidOption) {
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
		c, err := leasetable.Open(t.Context(), f.pool, leasetable.WithSchema(name))
		if err == nil {
			_ = c.Close(context.Background())
		}
		return err
	}
	check := func(name string, want error, advice string) {
		t.Helper()
		err := openSchema(name)
		var schema *leasetable.SchemaError
		if !errors.Is(err, want) || !errors.Is(err, leasetable.ErrSchema) || !errors.As(err, &schema) || !strings.Contains(err.Error(), advice) {
			t.Errorf("want %v with %q, got %v", want, advice, err)
		}
	}
	check(missing, leasetable.ErrSchemaMissing, "pglock migrate up")
	f.sql("CREATE OR REPLACE FUNCTION pglock.pglock_schema_version() RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT 0'")
	check(f.schema, leasetable.ErrSchemaOutdated, "pglock migrate up")
	f.sql("CREATE OR REPLACE FUNCTION pglock.pglock_schema_version() RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT 99'")
	check(f.schema, leasetable.ErrSchemaNewer, "newer pglock")

	f.sql("CREATE ROLE \"nobody of " + strings.ReplaceAll(f.schema, `"`, `""`) + "\" LOGIN PASSWORD 'secret'")
	t.Cleanup(func() {
		_, _ = f.pool.Exec(context.Background(), "DROP ROLE \"nobody of "+strings.ReplaceAll(f.schema, `"`, `""`)+"\"")
	})
	f.pool = pgtest.Pool(t, func(c *pgxpool.Config) {
		c.ConnConfig.User, c.ConnConfig.Password = "nobody of "+f.schema, "secret"
	})
	if err := openSchema(f.schema); !errors.Is(err, leasetable.ErrPrivilege) {
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
		"refused":        {&url.URL{Scheme: "postgres", Host: refused, User: url.UserPassword("u", "s3cret"), Path: "/db"}, leasetable.ErrUnavailable},
		"silent":         {&url.URL{Scheme: "postgres", Host: silent.Addr().String(), User: url.UserPassword("u", "s3cret"), Path: "/db"}, leasetable.ErrUnavailable},
		"wrong password": {&url.URL{Scheme: "postgres", Host: good.Host, User: url.UserPassword(good.User.Username(), "s3cret"), Path: good.Path}, leasetable.ErrLogin},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		if errors.Is(tc.want, leasetable.ErrLogin) {
			ctx, cancel = context.WithTimeout(t.Context(), 20*time.Second)
		}
		_, err := leasetable.Open(ctx, pgtest.PoolOn(t, tc.u.String()))
		cancel()
		if !errors.Is(err, tc.want) || errors.Is(err, leasetable.ErrLogin) && errors.Is(err, leasetable.ErrUnavailable) {
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
		if _, err := c.TryAcquire(t.Context(), name); !errors.Is(err, leasetable.ErrInvalidName) {
			t.Errorf("TryAcquire(%.10q): %v", name, err)
		}
		if _, err := c.Acquire(t.Context(), name); !errors.Is(err, leasetable.ErrInvalidName) {
			t.Errorf("Acquire(%.10q): %v", name, err)
		}
		if _, err := c.Get(t.Context(), name); !errors.Is(err, leasetable.ErrInvalidName) {
			t.Errorf("Get(%.10q): %v", name, err)
		}
	}
	longest := strings.Repeat("ü", 256)
	if l := try(t, c, longest); l.Name() != longest {
		t.Error("the longest name was changed")
	}
	if _, err := c.TryAcquire(t.Context(), "n", leasetable.WithTTL(-1)); !errors.Is(err, leasetable.ErrInvalidOption) {
		t.Errorf("a lease's bad option: %v", err)
	}
	if _, err := c.TryAcquire(t.Context(), "n", leasetable.WithTTL(time.Second), leasetable.WithSafetyMargin(time.Minute)); !errors.Is(err, leasetable.ErrInvalidOption) {
		t.Errorf("a lease's conflicting options: %v", err)
	}
}

func TestCloseReleasesAndWakes(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.openUnclosed()
	var held []*leasetable.Lease
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
	if err := <-waiting; !errors.Is(err, leasetable.ErrClosed) || !errors.Is(err, leasetable.ErrNotAcquired) {
		t.Errorf("a waiter got %v", err)
	}
	for _, l := range held {
		if err := context.Cause(l.Context()); !errors.Is(err, leasetable.ErrReleased) || !errors.Is(err, leasetable.ErrClosed) {
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
		if !errors.Is(err, leasetable.ErrClosed) {
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
	l := try(t, c, "n", leasetable.WithoutRenewal())
	f.sql("UPDATE pglock.distributed_locks SET token = pglock.next_fencing_token(), holder = 'thief'")
	if err := l.Extend(t.Context(), time.Minute); !errors.Is(err, leasetable.ErrLost) {
		t.Fatalf("after a takeover: %v", err)
	}
	leasetable.ReleaseAgainOnClose(c, l)
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
	l := try(t, c, "n", leasetable.WithRenewEvery(50*time.Millisecond))
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
