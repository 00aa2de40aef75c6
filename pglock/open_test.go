package pglock_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/schema"
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
		"longest hold":       {[]pglock.Option{pglock.WithMaxHold(-1)}, pglock.ErrInvalidOption, "longest hold"},
		"hold too long":      {[]pglock.Option{pglock.WithMaxHold(20 * 365 * 24 * time.Hour)}, pglock.ErrInvalidOption, "longest hold"},
		"lock delay":         {[]pglock.Option{pglock.WithLockDelay(-1)}, pglock.ErrInvalidOption, "lock delay"},
		"delay too long":     {[]pglock.Option{pglock.WithLockDelay(20 * 365 * 24 * time.Hour)}, pglock.ErrInvalidOption, "lock delay"},
		"nil":                {[]pglock.Option{nil}, pglock.ErrInvalidOption, "an option is nil"},
		"one connection":     {[]pglock.Option{pglock.WithMaxConns(1)}, pglock.ErrInvalidOption, "renewals"},
	} {
		c, err := pglock.Open(t.Context(), pool, tc.opts...)
		if c != nil || !errors.Is(err, tc.want) || !strings.Contains(err.Error(), tc.rule) {
			t.Errorf("%s: %v", name, err)
		}
	}
	fails(t, "no pool", second(pglock.Open(t.Context(), nil)), pglock.ErrInvalidOption)
	check(t, pool.Ping(t.Context()))
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
	must(t, openSchema(f.schema)) // it serves this program too
	f.sql("CREATE OR REPLACE FUNCTION pglock.pglock_oldest_client() RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT 98'")
	check(f.schema, schema.ErrNewer, "newer pglock")
}

// TestOpenUnreachable: the server accepts connections and does not answer. The error does not show the
// password. TestErrorLines has the other failures.
func TestOpenUnreachable(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer silent.Close()
	ctx := bounded(t, time.Second)
	_, err = pglock.Open(ctx, pgtest.PoolOn(t, "postgres://u:s3cret@"+silent.Addr().String()+"/db"))
	if !errors.Is(err, pglock.ErrUnavailable) || errors.Is(err, pglock.ErrLogin) || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("Open: %v", err)
	}
}

// TestACanceledOpenIsNoOutage: the error is that of ctx, as that of every other call, and so is that
// of Prune.
func TestACanceledOpenIsNoOutage(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	why := errors.New("why")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	for what, err := range map[string]error{
		"Open":  second(pglock.Open(ctx, f.pool, pglock.WithSchema(f.schema))),
		"Prune": second(f.open().Prune(ctx, time.Hour)),
		"Get":   second(f.open().Get(ctx, "n")),
	} {
		if !errors.Is(err, context.Canceled) || !errors.Is(err, why) || errors.Is(err, pglock.ErrUnavailable) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func second[T any](_ T, err error) error { return err }

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
		pgtest.Eventually(t, "the connections end", func() bool {
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

// TestARejectedLoginEndsTheWait: a client that may not log in any more does not wait for 30 s, as for a server that is
// away: that wait would end with ErrUnavailable. The holder's release says why it fails. Sessions of a role with
// NOLOGIN would not do: a login that had begun before is accepted.
func TestARejectedLoginEndsTheWait(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var logins pgtest.Logins
	open := func(change ...func(*pgxpool.Config)) *pglock.Client {
		return locktest.Open(t, pgtest.Pool(t, change...), pglock.WithSchema(f.schema), pglock.WithTTL(time.Hour))
	}
	c, rival, holder := open(logins.Watch), open(logins.Watch), open()
	l := try(t, holder, "n")
	lost := leaving(t.Context(), c.Lock("n"))
	pgtest.Eventually(t, "it waits", func() bool { return pglock.HeadWaits(c, "n") })
	mine := try(t, rival, "mine")
	logins.Reject(t, f.pool)
	select {
	case err := <-lost:
		if !errors.Is(err, pglock.ErrLogin) || errors.Is(err, pglock.ErrUnavailable) {
			t.Errorf("the waiter was told %v", err)
		}
	case <-time.After(pgtest.Patience):
		t.Error("the waiter still waits")
	}
	fails(t, "Release", mine.Release(t.Context()), pglock.ErrLogin)
	logins.Rejecting.Store(false)
	pgtest.Eventually(t, "it is released", func() bool { return mine.Release(t.Context()) == nil })
	release(t, l)
	for _, c := range []*pglock.Client{c, rival, holder} {
		check(t, c.Close(t.Context()))
	}
}

// TestARotationOfPasswords: the sessions end, and the logins are rejected for a while. The holder's lease
// outlives that, and if the password never arrives, it is lost after few logins.
func TestARotationOfPasswords(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for name, ttl := range map[string]time.Duration{"it arrives": pgtest.Patience, "it never arrives": 12 * time.Second} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var logins pgtest.Logins
			c := locktest.Open(t, pgtest.Pool(t, logins.Watch), pglock.WithSchema(f.schema), pglock.WithTTL(ttl), pglock.WithRenewEvery(time.Second), pglock.WithLogger(nil))
			l := try(t, c, name)
			logins.Reject(t, f.pool)
			if name == "it arrives" {
				pgtest.Eventually(t, "two logins", func() bool { return logins.Rejected.Load() > 1 })
				before := l.Deadline()
				logins.Rejecting.Store(false)
				pgtest.Eventually(t, "it is renewed", func() bool { return l.Deadline().After(before) })
				release(t, l)
			} else {
				ends(t, "the lease", l.Done())
				// After the first one at least 0.5, 1 and then 1.5 s pass, within 10.8 s.
				if n := logins.Rejected.Load(); n < 1 || n > 10 {
					t.Errorf("%d logins", n)
				}
			}
			logins.Rejecting.Store(false)
			check(t, c.Close(t.Context()))
		})
	}
}
