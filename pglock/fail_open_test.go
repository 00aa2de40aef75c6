package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/faultproxy"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/pglock"
)

// far is a client behind a proxy, and the proxy. Nothing that it logs is lost.
func (f fixture) far(opts ...pglock.Option) (*pglock.Client, *faultproxy.Proxy, *strings.Builder) {
	f.t.Helper()
	c := f.pool.Config().ConnConfig
	proxy := faultproxy.New(f.t, net.JoinHostPort(c.Host, strconv.Itoa(int(c.Port))))
	pool := pgtest.PoolOn(f.t, proxy.URL(pgtest.URL(f.t)))
	logged := &strings.Builder{}
	client, err := pglock.Open(f.t.Context(), pool, append([]pglock.Option{
		pglock.WithSchema(f.schema), pglock.WithLogger(slog.New(slog.NewTextHandler(logged, &slog.HandlerOptions{Level: slog.LevelWarn}))),
	}, opts...)...)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { _ = client.Close(context.Background()) })
	return client, proxy, logged
}

// TestFailOpen: while the database is away, the work runs with a lease that protects nothing and
// says so. All that needs a grant is refused. Without the option, the work does not run.
func TestFailOpen(t *testing.T) {
	t.Parallel()
	f := open(t)
	table := schema.Quote(f.schema) + ".accounts"
	if _, err := f.pool.Exec(t.Context(), "CREATE TABLE "+table+" (id int PRIMARY KEY)"); err != nil {
		t.Fatal(err)
	}
	if err := fencing.Protect(t.Context(), f.pool, table, fencing.WithSchema(f.schema)); err != nil {
		t.Fatal(err)
	}
	type do func(context.Context, string, func(context.Context, *pglock.Lease) error, ...pglock.LeaseOption) error
	refuse := func(p *faultproxy.Proxy) { p.Refuse(true); p.Sever() }
	for name, tc := range map[string]struct {
		fault func(*faultproxy.Proxy)
		call  func(c *pglock.Client) do
		opts  []pglock.LeaseOption
	}{
		"TryDo, refused":          {refuse, func(c *pglock.Client) do { return c.TryDo }, nil},
		"Do with a wait, refused": {refuse, func(c *pglock.Client) do { return c.Do }, []pglock.LeaseOption{pglock.WithWait(time.Second)}},
		"Do with a wait, silent":  {(*faultproxy.Proxy).Cut, func(c *pglock.Client) do { return c.Do }, []pglock.LeaseOption{pglock.WithWait(time.Second)}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := fixture{Client: f.Client, t: t, pool: f.pool, schema: f.schema}
			c, proxy, logged := f.far()
			work := tc.call(c)
			tc.fault(proxy)
			ran := false
			if err := work(t.Context(), name, func(context.Context, *pglock.Lease) error { ran = true; return nil }, tc.opts...); err == nil || ran {
				t.Errorf("control: without the option the work ran: %v", err)
			}
			own := errors.New("the function's")
			type key struct{}
			began := time.Now()
			err := work(context.WithValue(t.Context(), key{}, "v"), name, func(ctx context.Context, l *pglock.Lease) error {
				ran = true
				if !l.Unlocked() || l.Token() != 0 || l.Fence() != (pglock.Fence{Schema: f.schema, Name: name}) || !l.Deadline().IsZero() || l.Name() != name {
					t.Errorf("the lease: %v, %v, deadline %v", l.Unlocked(), l.Fence(), l.Deadline())
				}
				if l.Err() != nil || ctx.Err() != nil || ctx.Value(key{}) != "v" || l.Context().Value(key{}) != "v" {
					t.Errorf("lease %v, context %v, %v", l.Err(), ctx.Err(), ctx.Value(key{}))
				}
				f.refused(l, table)
				if err := l.Extend(ctx, time.Minute); !errors.Is(err, pglock.ErrNotAcquired) {
					t.Errorf("Extend: %v", err)
				}
				if _, err := l.HandOver(); !errors.Is(err, pglock.ErrNotAcquired) {
					t.Errorf("HandOver: %v", err)
				}
				// Others aren't kept out.
				other, err := f.TryAcquire(t.Context(), name)
				if err != nil {
					t.Error(err)
				} else if err := other.Release(ctx); err != nil {
					t.Error(err)
				}
				return own
			}, append(tc.opts, pglock.WithFailOpen(), pglock.WithTTL(20*time.Second), pglock.WithMaxHold(time.Nanosecond))...)
			if !ran || err != own { //nolint:errorlint // nothing is joined
				t.Errorf("ran %v, %v", ran, err)
			}
			if took := time.Since(began); took > 30*time.Second {
				t.Errorf("the work began too late: all took %v", took)
			}
			if !strings.Contains(logged.String(), "without the lock") {
				t.Errorf("logged: %s", logged)
			}
			proxy.Refuse(false)
			proxy.Heal()
			if err := work(t.Context(), name, func(_ context.Context, l *pglock.Lease) error {
				if l.Unlocked() || l.Token() == 0 {
					t.Error("unlocked although the database is there")
				}
				return nil
			}, pglock.WithFailOpen(), pglock.WithWait(time.Minute)); err != nil && !errors.Is(err, pglock.ErrUnavailable) { // it may meet a dead connection
				t.Error(err)
			}
		})
	}
}

// refused checks that every way to write as the holder of l is refused.
func (f fixture) refused(l *pglock.Lease, table string) {
	f.t.Helper()
	for what, tc := range map[string]struct {
		fence func(ctx context.Context, tx pgx.Tx) error
		is    error
	}{
		"Guard":         {func(ctx context.Context, tx pgx.Tx) error { return l.Guard(ctx, tx) }, pglock.ErrStale},
		"Bind":          {func(ctx context.Context, tx pgx.Tx) error { return l.Bind(ctx, tx) }, pglock.ErrStale},
		"fencing.Check": {func(ctx context.Context, tx pgx.Tx) error { return fencing.Check(ctx, tx, l.Fence()) }, fencing.ErrInvalidFence},
		"fencing.Bind":  {func(ctx context.Context, tx pgx.Tx) error { return fencing.Bind(ctx, tx, l.Fence()) }, fencing.ErrInvalidFence},
		"protected table": {func(ctx context.Context, tx pgx.Tx) error {
			_ = l.Bind(ctx, tx) // ignored by mistake
			_, err := tx.Exec(ctx, "INSERT INTO "+table+" VALUES (1)")
			return fencing.Explain(err)
		}, pglock.ErrUnfenced},
	} {
		if err := pgx.BeginFunc(f.t.Context(), f.pool, func(tx pgx.Tx) error { return tc.fence(f.t.Context(), tx) }); !errors.Is(err, tc.is) {
			f.t.Errorf("%s: %v", what, err)
		}
	}
}

// TestFailOpenIsForOutagesOnly: every other failure is returned, and the work does not run.
func TestFailOpenIsForOutagesOnly(t *testing.T) {
	t.Parallel()
	f := open(t)
	held, err := f.TryAcquire(t.Context(), "held")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = held.Release(context.Background()) }()
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	must := func(what string, c *pglock.Client, ctx context.Context, name string, is error, opts ...pglock.LeaseOption) {
		t.Helper()
		opts = append(opts, pglock.WithFailOpen())
		never := func(context.Context, *pglock.Lease) error { t.Errorf("%s: the work ran", what); return nil }
		if err := c.TryDo(ctx, name, never, opts...); !errors.Is(err, is) {
			t.Errorf("%s: TryDo: %v", what, err)
		}
		if err := c.Do(ctx, name, never, append([]pglock.LeaseOption{pglock.WithWait(20 * time.Millisecond)}, opts...)...); !errors.Is(err, is) && !errors.Is(err, pglock.ErrTimeout) {
			t.Errorf("%s: Do: %v", what, err)
		}
	}
	must("held", f.Client, t.Context(), "held", pglock.ErrNotAcquired)
	must("held, barging", f.Client, t.Context(), "held", pglock.ErrNotAcquired, pglock.WithBarging())
	must("no name", f.Client, t.Context(), "", pglock.ErrInvalidName)
	must("an invalid option", f.Client, t.Context(), "n", pglock.ErrInvalidOption, pglock.WithTTL(-1))
	must("canceled", f.Client, canceled, "n", context.Canceled)
	outage, cancelOutage := context.WithCancelCause(t.Context())
	cancelOutage(fmt.Errorf("the caller's: %w", pglock.ErrUnavailable))
	must("canceled because something is away", f.Client, outage, "n", context.Canceled)

	c, proxy, _ := f.far()
	proxy.Refuse(true)
	proxy.Sever()
	must("canceled while the database is away", c, canceled, "n", context.Canceled)
	if err := c.Close(t.Context()); err != nil {
		t.Error(err)
	}
	must("closed", c, t.Context(), "n", pglock.ErrClosed)

	c, proxy, _ = f.far()
	proxy.Delay(100 * time.Millisecond)
	must("a grant that comes too late", c, t.Context(), "late", pglock.ErrUnavailable, pglock.WithTTL(50*time.Millisecond), pglock.WithWait(5*time.Second))
	proxy.Delay(0)

	// The only connection is dead, and there is time for one attempt. The database is there.
	c, proxy, _ = f.far()
	proxy.Sever()
	err = c.Do(t.Context(), "dead connection", func(_ context.Context, l *pglock.Lease) error {
		if l.Unlocked() {
			t.Error("a dead connection: the work ran without the lock")
		}
		return nil
	}, pglock.WithFailOpen(), pglock.WithWait(time.Millisecond))
	if err != nil && !errors.Is(err, pglock.ErrTimeout) {
		t.Errorf("a dead connection: %v", err)
	}

	if _, err := pglock.Open(t.Context(), f.pool, pglock.WithSchema(f.schema), pglock.WithFailOpen()); !errors.Is(err, pglock.ErrInvalidOption) {
		t.Errorf("as an option of Open: %v", err)
	}
	if _, err := f.Adopt(t.Context(), held.Fence(), pglock.WithFailOpen()); !errors.Is(err, pglock.ErrInvalidOption) {
		t.Errorf("as an option of Adopt: %v", err)
	}
}

// TestFailOpenNeedsAServerThatIsAway: one that answers with a refusal is not.
func TestFailOpenNeedsAServerThatIsAway(t *testing.T) {
	t.Parallel()
	never := func(context.Context, *pglock.Lease) error { t.Error("the work ran"); return nil }
	f := open(t)
	role := "role of " + f.schema
	if _, err := f.pool.Exec(t.Context(), "CREATE ROLE "+schema.Quote(role)+" LOGIN SUPERUSER PASSWORD 'secret'"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = f.pool.Exec(context.Background(), "DROP ROLE "+schema.Quote(role)) })
	pool := pgtest.Pool(t, func(c *pgxpool.Config) { c.ConnConfig.User, c.ConnConfig.Password = role, "secret" })
	c := f.openOn(pool)
	for _, sql := range []string{
		"ALTER ROLE " + schema.Quote(role) + " NOLOGIN",
		"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = " + quoteLiteral(role),
	} {
		if _, err := f.pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.TryDo(t.Context(), "n", never, pglock.WithFailOpen()); err == nil {
		t.Error("a role that may not log in: no error")
	}
	if err := c.Do(t.Context(), "n", never, pglock.WithFailOpen(), pglock.WithWait(3*time.Second)); err == nil {
		t.Error("a role that may not log in: no error")
	}

	gone := open(t)
	if _, err := gone.pool.Exec(t.Context(), "DROP TABLE "+schema.Quote(gone.schema)+".distributed_locks CASCADE"); err != nil {
		t.Fatal(err)
	}
	if err := gone.TryDo(t.Context(), "n", never, pglock.WithFailOpen()); !errors.Is(err, pglock.ErrSchema) {
		t.Errorf("without tables: %v", err)
	}
}

func quoteLiteral(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

func TestCloseEndsUnlockedLeases(t *testing.T) {
	t.Parallel()
	c, proxy, _ := open(t).far()
	proxy.Refuse(true)
	proxy.Sever()
	l, err := c.TryAcquire(t.Context(), "n", pglock.WithFailOpen())
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if !errors.Is(l.Err(), pglock.ErrClosed) || !errors.Is(context.Cause(l.Context()), pglock.ErrReleased) {
		t.Errorf("lease %v, context %v", l.Err(), context.Cause(l.Context()))
	}
	if err := l.Release(t.Context()); err != nil {
		t.Error(err)
	}
}
