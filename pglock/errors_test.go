package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"regexp"
	"slices"
	"testing"
	"testing/fstest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/internal/testserver"
	"github.com/pglock/pglock-go/migrations"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/once"
	"github.com/pglock/pglock-go/pglock/runner"
)

// TestErrorLines provokes errors and checks each text to the letter: one line, the cause first, and
// one package's name. Tokens are written N, times T, and addresses A. Each error is of the listed
// sentinels and of no others, so that callers can tell the causes apart (P23).
func TestErrorLines(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t, testserver.Options{})
	admin := pgtest.PoolOn(t, server.URL())
	exec := func(sql string) {
		t.Helper()
		if _, err := admin.Exec(t.Context(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	must(t, migrations.Up(t.Context(), admin))
	exec("CREATE ROLE app LOGIN PASSWORD 'secret'; SELECT pglock.grant_user('app')")
	exec("CREATE ROLE stranger LOGIN PASSWORD 'secret'")
	exec("CREATE ROLE reader LOGIN PASSWORD 'secret'; SELECT pglock.grant_user('reader'); ALTER ROLE reader SET default_transaction_read_only = on")
	exec("CREATE ROLE looker LOGIN PASSWORD 'secret'; SELECT pglock.grant_reader('looker')")
	must(t, migrations.Up(t.Context(), admin, migrations.WithSchema("walled")))
	exec("SELECT walled.grant_user('app')")
	exec("CREATE DATABASE closed")
	exec("REVOKE CONNECT ON DATABASE closed FROM PUBLIC")
	address := mustParse(t, server.URL())
	pool := func(change func(u *url.URL)) *pgxpool.Pool {
		u := *address
		u.User = url.UserPassword("app", "secret")
		if change != nil {
			change(&u)
		}
		return pgtest.PoolOn(t, u.String())
	}
	open := func(change func(u *url.URL)) error {
		c, err := pglock.Open(t.Context(), pool(change), pglock.WithLogger(slog.New(slog.DiscardHandler)))
		if err == nil {
			return c.Close(t.Context())
		}
		return err
	}
	user := func(name, password string) func(*url.URL) {
		return func(u *url.URL) { u.User = url.UserPassword(name, password) }
	}
	walled, err := pglock.Open(t.Context(), pool(nil), pglock.WithSchema("walled"))
	must(t, err)
	t.Cleanup(func() { _ = walled.Close(context.Background()) })
	exec("ALTER TABLE walled.distributed_locks ENABLE ROW LEVEL SECURITY") // under an open client
	c, err := pglock.Open(t.Context(), pool(nil), pglock.WithHolder("me"), pglock.WithTTL(time.Hour))
	must(t, err)
	t.Cleanup(func() { _ = c.Close(context.Background()) })
	other, err := pglock.Open(t.Context(), pool(nil), pglock.WithHolder("rival\n2"))
	must(t, err)
	t.Cleanup(func() { _ = other.Close(context.Background()) })
	held := func(c *pglock.Client, name string) *pglock.Lease {
		l, err := c.TryAcquire(t.Context(), name)
		must(t, err)
		return l
	}
	mine := held(c, "mine")
	held(other, "theirs")
	ended := func(how error) context.Context {
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(how)
		return ctx
	}
	acquireIn := func(ctx context.Context, name string, opts ...pglock.LeaseOption) error {
		return second(c.Acquire(ctx, name, opts...))
	}
	acquire := func(name string, opts ...pglock.LeaseOption) error { return acquireIn(t.Context(), name, opts...) }
	acquireFor := func(d time.Duration, cause error) error {
		ctx, cancel := context.WithTimeoutCause(t.Context(), d, cause)
		defer cancel()
		return acquireIn(ctx, "theirs", pglock.WithWait(time.Minute))
	}
	failure := errors.New("the work failed")
	stolen := func(returned error) error {
		return c.Do(t.Context(), "stolen", func(ctx context.Context, l *pglock.Lease) error {
			exec("UPDATE pglock.distributed_locks SET token = pglock.next_fencing_token(), holder = 'thief' WHERE name = 'stolen'")
			defer exec("UPDATE pglock.distributed_locks SET holder = NULL, expires_at = '-infinity' WHERE name = 'stolen'")
			fails(t, "Extend of a stolen lease", l.Extend(ctx, time.Hour), pglock.ErrLost)
			return returned
		})
	}
	inTx := func(p *pgxpool.Pool, fn func(tx pgx.Tx) error) error {
		tx, err := p.Begin(t.Context())
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback(context.Background()) }()
		return fn(tx)
	}
	app := pool(nil)
	doTx := func(opts ...advisory.DoOption) error {
		return inTx(app, func(tx pgx.Tx) error {
			if err := advisory.Lock(t.Context(), tx, c.Key("discount")); err != nil {
				return err
			}
			return c.DoTx(t.Context(), "discount", func(context.Context, pgx.Tx) error { return nil }, opts...)
		})
	}
	ownEnd := func() *pglock.Lease {
		l := held(c, "ended")
		check(t, l.Release(t.Context()))
		return l
	}
	under := func(k pglock.Lock, do func(l *pglock.Lease) error) error {
		l, err := k.TryAcquire(t.Context())
		must(t, err)
		defer release(t, l)
		return do(l)
	}
	all, five := c.All(c.Semaphore("five", 5), c.Writer("rw")), c.Semaphore("five", 5)
	downgrade := func(l *pglock.Lease) error { return l.Downgrade(t.Context()) }
	keep := func(l *pglock.Lease) error { return l.KeepPermits(t.Context(), 1) }
	refused, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	_ = refused.Close()

	for _, tc := range []struct {
		name string
		err  error
		is   []error
		line string
	}{
		{"unknown role", open(user("nobody", "secret")), []error{pglock.ErrLogin}, "pglock: open: login rejected: failed to connect to `user=nobody database=postgres`: A: server error: FATAL: password authentication failed for user \"nobody\" (SQLSTATE 28P01)"},
		{"wrong password", open(user("app", "wrong")), []error{pglock.ErrLogin}, "pglock: open: login rejected: failed to connect to `user=app database=postgres`: A: server error: FATAL: password authentication failed for user \"app\" (SQLSTATE 28P01)"},
		{"unknown database", open(func(u *url.URL) { u.Path = "/none" }), []error{pglock.ErrLogin}, "pglock: open: login rejected: failed to connect to `user=app database=none`: A: server error: FATAL: database \"none\" does not exist (SQLSTATE 3D000)"},
		{"no right to connect", open(func(u *url.URL) { u.Path = "/closed" }), []error{pglock.ErrLogin}, "pglock: open: login rejected: failed to connect to `user=app database=closed`: A: server error: FATAL: permission denied for database \"closed\" (SQLSTATE 42501)"},
		{"refused", open(func(u *url.URL) { u.Host = refused.Addr().String() }), []error{pglock.ErrUnavailable}, "pglock: open: database unavailable: failed to connect to `user=app database=postgres`: A: dial error: dial tcp A: connect: connection refused"},
		{"no rights", open(user("stranger", "secret")), []error{pglock.ErrPrivilege}, `pglock: open: missing privilege in schema "pglock": ERROR: permission denied for schema pglock (SQLSTATE 42501): let the owner of the tables run SELECT "pglock".grant_user('ROLE')`},
		{"read-only role", open(user("reader", "secret")), []error{pglock.ErrUnavailable}, `pglock: database unavailable: default_transaction_read_only is on (set by: user): turn it off for this role, or name all hosts of the cluster and set target_session_attrs=read-write`},
		{"row security", second(walled.TryAcquire(t.Context(), "n")), []error{pglock.ErrPrivilege}, "pglock: acquire \"n\": missing privilege in schema \"walled\": ERROR: new row violates row-level security policy for table \"distributed_locks\" (SQLSTATE 42501): let the owner of the tables disable row security on them, or create a policy that shows all rows: `pglock doctor` has the statement"},
		{"resolved by a reader", once.Resolve(t.Context(), pool(user("looker", "secret")), "k", 1, true), []error{pglock.ErrPrivilege}, `once: resolve "k": missing privilege in schema "pglock": ERROR: permission denied for table once_keys (SQLSTATE 42501): let the owner of the tables run SELECT "pglock".grant_user('ROLE')`},
		{"no tables", second(pglock.Open(t.Context(), app, pglock.WithSchema("elsewhere"))), []error{schema.ErrMissing, pglock.ErrSchema}, "pglock: schema missing: no pglock tables in schema \"elsewhere\": run `pglock migrate up`, call migrations.Up, or name the right schema"},
		{"invalid option", acquire("n", pglock.WithWait(-1)), []error{pglock.ErrInvalidOption}, `pglock: invalid option: wait -1ns is negative: must be 0 or more`},
		{"invalid name", acquire(""), []error{pglock.ErrInvalidOption}, `pglock: invalid lock name: "" is empty`},
		{"busy", acquire("theirs", pglock.WithWait(0)), []error{pglock.ErrNotAcquired}, `pglock: acquire "theirs": held by rival; 2 (token N), for another T unless renewed`},
		{"busy here", acquire("mine", pglock.WithWait(0)), []error{pglock.ErrNotAcquired}, `pglock: acquire "mine": held by this client, me (token N), for another T unless renewed`},
		{"wait is over", acquire("theirs", pglock.WithWait(20*time.Millisecond)), []error{pglock.ErrNotAcquired, pglock.ErrTimeout}, `pglock: acquire "theirs": gave up after T: lock timeout: held by rival; 2 (token N), for another T unless renewed`},
		{"wait is over here", acquire("mine", pglock.WithWait(20*time.Millisecond)), []error{pglock.ErrNotAcquired, pglock.ErrTimeout}, `pglock: acquire "mine": gave up after T: lock timeout: held by this client, me (token N), for another T unless renewed`},
		{"context is over", acquireFor(2*time.Second, nil), []error{pglock.ErrNotAcquired, context.DeadlineExceeded}, `pglock: acquire "theirs": gave up after T: context deadline exceeded: held by rival; 2 (token N), for another T unless renewed`},
		{"context is over, by the sentinel of a wait", acquireFor(2*time.Second, pglock.ErrTimeout), []error{pglock.ErrNotAcquired, context.DeadlineExceeded, pglock.ErrTimeout}, `pglock: acquire "theirs": gave up after T: context deadline exceeded: lock timeout: held by rival; 2 (token N), for another T unless renewed`},
		{"canceled", acquireIn(ended(failure), "theirs"), []error{pglock.ErrNotAcquired, context.Canceled, failure}, `pglock: acquire "theirs": gave up after T: context canceled: the work failed`},
		{"held by the caller", acquireIn(mine.Context(), "mine"), []error{pglock.ErrHeldByCaller}, `pglock: acquire "mine": the caller's context holds this lock (token N): run under it by Do with WithJoin, or acquire under another context`},
		{"held by the caller, and WithJoin", second(c.Acquire(mine.Context(), "mine", pglock.WithJoin())), []error{pglock.ErrHeldByCaller}, `pglock: acquire "mine": the caller's context holds this lock (token N): run under it by Do with WithJoin, or acquire under another context`},
		{"downgrade of several", under(all, downgrade), []error{pglock.ErrKind}, `pglock: downgrade "five, rw": another kind of lock: the lease has several names: acquire this one by itself`},
		{"upgrade of several", under(all, func(l *pglock.Lease) error { return second(l.TryUpgrade(t.Context())) }), []error{pglock.ErrKind}, `pglock: upgrade "five, rw": another kind of lock: the lease has several names: acquire this one by itself`},
		{"permits of several", under(all, keep), []error{pglock.ErrKind}, `pglock: release permits of "five, rw": another kind of lock: the lease has several names: acquire this one by itself`},
		{"hand over several", under(all, func(l *pglock.Lease) error { return second(l.HandOver()) }), []error{pglock.ErrKind}, `pglock: hand over "five, rw": another kind of lock: the lease has several names: acquire this one by itself`},
		{"downgrade of permits", under(five, downgrade), []error{pglock.ErrKind}, `pglock: another kind of lock: "five" is a semaphore with 5 permits, not a readers-writer lock`},
		{"permits of a writer", under(c.Writer("rw"), keep), []error{pglock.ErrKind}, `pglock: another kind of lock: "rw" is a readers-writer lock, not a semaphore`},
		{"permits of one holder", keep(mine), []error{pglock.ErrKind}, `pglock: another kind of lock: "mine" is a lock with one holder, not a semaphore`},
		{"one permit", c.Resize(t.Context(), "mine", 1), []error{pglock.ErrKind}, `pglock: another kind of lock: "mine" is a lock with one holder, not a semaphore with 1 permit`},
		{"lost", stolen(nil), []error{pglock.ErrLost}, `pglock: lock lost: "stolen" (token N): its grant ended on the server, or another holder has the lock`},
		{"failed and lost", stolen(fmt.Errorf("step 1:\n\tstep 2: %w", failure)), []error{failure, pglock.ErrLost}, `step 1: step 2: the work failed; pglock: lock lost: "stolen" (token N): its grant ended on the server, or another holder has the lock`},
		{"not found", second(c.Get(t.Context(), "never")), []error{pglock.ErrNotFound}, `pglock: no such lock: "never"`},
		{"get canceled", second(c.Get(ended(failure), "never")), []error{context.Canceled, failure}, `pglock: get "never": context canceled: the work failed`},
		{"DoTx timeout", doTx(advisory.WithTimeout(20 * time.Millisecond)), []error{pglock.ErrNotAcquired, pglock.ErrTimeout}, `advisory: lock "discount" (6824127248951005947): gave up after T: lock timeout: ERROR: canceling statement due to lock timeout (SQLSTATE 55P03): held by process N, in a transaction for T`},
		{"guard after the end", ownEnd().Guard(t.Context(), nil), []error{pglock.ErrStale, pglock.ErrReleased}, `pglock: lock released: stale grant: grant N of "ended" has ended`},
		{"extend canceled", mine.Extend(ended(failure), time.Hour), []error{context.Canceled, failure}, `pglock: extend "mine": context canceled: the work failed`},
		{"closed", func() error {
			c, err := pglock.Open(t.Context(), app)
			if err != nil {
				return err
			}
			_ = c.Close(t.Context())
			_, err = c.Acquire(t.Context(), "n")
			return err
		}(), []error{pglock.ErrClosed}, `pglock: client closed`},
		{"DoTx canceled", c.DoTx(ended(failure), "discount", func(context.Context, pgx.Tx) error { return nil }), []error{pglock.ErrNotAcquired, context.Canceled, failure}, `advisory: lock "discount" (6824127248951005947): gave up after T: context canceled: the work failed`},
		{"DoTx fails and can't roll back", c.DoTx(t.Context(), "discount", func(ctx context.Context, tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, "SELECT pg_terminate_backend(pg_backend_pid())"); err == nil {
				t.Error("the connection survived")
			}
			return failure
		}), []error{failure}, `the work failed; rollback: the connection was closed: conn closed`},
		{"sequence of keys", inTx(app, func(tx pgx.Tx) error {
			return inTx(app, func(second pgx.Tx) error {
				if err := advisory.Lock(t.Context(), tx, advisory.KeyFromInt64(7)); err != nil {
					return err
				}
				return advisory.LockAll(t.Context(), second, []advisory.Key{advisory.KeyFromInt64(7), c.Key("b")}, advisory.WithTimeout(20*time.Millisecond))
			})
		}), []error{pglock.ErrNotAcquired, pglock.ErrTimeout}, `advisory: lock (7), "b" (2047708122095418259): gave up after T: lock timeout: ERROR: canceling statement due to lock timeout (SQLSTATE 55P03)`},
		{"runner waits", runner.Guard(t.Context(), c, "theirs", func(context.Context) error { return nil }, runner.WithTimeout(3*time.Second)), []error{pglock.ErrNotAcquired, pglock.ErrTimeout, context.DeadlineExceeded}, `pglock: acquire "theirs": gave up after T: context deadline exceeded: lock timeout: held by rival; 2 (token N), for another T unless renewed`},
		{"DoTx login", func() error {
			return advisory.Do(t.Context(), pool(user("nobody", "x")), c.Key("discount"), func(context.Context, pgx.Tx) error { return nil })
		}(), []error{pglock.ErrLogin}, "advisory: lock \"discount\" (6824127248951005947): login rejected: failed to connect to `user=nobody database=postgres`: A: server error: FATAL: password authentication failed for user \"nobody\" (SQLSTATE 28P01)"},
		{"DoTx fails and ends the transaction", c.DoTx(t.Context(), "discount", func(ctx context.Context, tx pgx.Tx) error { return tx.Commit(ctx) }), nil, `pglock: transaction not usable: the function has ended it, and with it the lock`},
		{"try", inTx(app, func(tx pgx.Tx) error {
			return inTx(app, func(second pgx.Tx) error {
				return errors.Join(advisory.Lock(t.Context(), tx, c.Key("a\nb")), advisory.TryLock(t.Context(), second, c.Key("a\nb")))
			})
		}), []error{pglock.ErrNotAcquired}, `advisory: lock "a\nb" (-7135131876790250135): another session holds it`},
		{"stale", inTx(app, func(tx pgx.Tx) error {
			return fencing.Check(t.Context(), tx, fencing.Fence{Schema: "pglock", Name: "theirs", Token: 1})
		}), []error{pglock.ErrStale}, `fencing: stale grant: grant N of "theirs", where N is the newest`},
		{"stale by schema", inTx(app, func(tx pgx.Tx) error {
			return fencing.Check(t.Context(), tx, fencing.Fence{Schema: "elsewhere", Name: "theirs", Token: 1})
		}), []error{schema.ErrMissing, pglock.ErrSchema}, "pglock: schema missing: no pglock tables in schema \"elsewhere\": run `pglock migrate up`, call migrations.Up, or name the right schema"},
		{"migrate login", migrations.Up(t.Context(), pool(user("nobody", "x"))), []error{pglock.ErrLogin}, "migrations: schema \"pglock\": login rejected: failed to connect to `user=nobody database=postgres`: A: server error: FATAL: password authentication failed for user \"nobody\" (SQLSTATE 28P01)"},
		{"migrate read-only", migrations.Up(t.Context(), pgtest.PoolOn(t, server.URL(), func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["default_transaction_read_only"] = "on" }), migrations.WithSchema("new")), nil, `migrations: schema "new": ERROR: cannot execute CREATE SCHEMA in a read-only transaction (SQLSTATE 25006): the server is a standby, or default_transaction_read_only is on`},
		{"migrate rights", migrations.Up(t.Context(), app, migrations.WithSchema("new")), []error{pglock.ErrPrivilege}, "pglock: missing privilege: role \"app\" lacks CREATE on DATABASE \"postgres\": GRANT CREATE ON DATABASE \"postgres\" TO \"app\", or let a role that has it run `pglock migrate up --grant-user app`"},
		{"runner login", runner.Run(t.Context(), runner.Files(fstest.MapFS{"1_a.up.sql": {Data: []byte("SELECT 1")}}, "."), pool(user("nobody", "x"))), []error{pglock.ErrLogin}, "runner: login rejected: failed to connect to `user=nobody database=postgres`: A: server error: FATAL: password authentication failed for user \"nobody\" (SQLSTATE 28P01)"},
	} {
		if tc.err == nil {
			t.Errorf("%s: no error", tc.name)
			continue
		}
		for _, sentinel := range slices.Concat(sentinels, tc.is) {
			if want := slices.Contains(tc.is, sentinel); errors.Is(tc.err, sentinel) != want {
				t.Errorf("%s: %v is %v: %v, want %v", tc.name, tc.err, sentinel, !want, want)
			}
		}
		got := masked(tc.err.Error())
		if got != tc.line {
			t.Errorf("%s:\n got %q\nwant %q", tc.name, got, tc.line)
		}
	}
}

// sentinels are the causes that callers tell apart.
var sentinels = []error{
	context.Canceled, context.DeadlineExceeded, pglock.ErrNotAcquired, pglock.ErrTimeout, pglock.ErrHeldByCaller, pglock.ErrLost,
	pglock.ErrReleased, pglock.ErrStale, pglock.ErrNotFound, pglock.ErrUnavailable, pglock.ErrLogin, pglock.ErrPrivilege,
	pglock.ErrSchema, pglock.ErrInvalidOption, pglock.ErrClosed,
}

// masked replaces what differs from run to run.
func masked(text string) string {
	for _, m := range []struct{ from, to string }{
		{`\S+:\d+ \([^)]*\)`, "A"},
		{`\b127\.0\.0\.1:\d+`, "A"},
		{`\b(\d+[hm])*\d+(\.\d+)?(ms|s|µs)\b`, "T"},
		{`\b(token|grant|where|process) \d+`, "$1 N"},
		{`A: failed SASL auth: `, "A: server error: "}, // if the server asks for a proof of the password
	} {
		text = regexp.MustCompile(m.from).ReplaceAllString(text, m.to)
	}
	return text
}

func mustParse(t *testing.T, text string) *url.URL {
	t.Helper()
	u, err := url.Parse(text)
	must(t, err)
	return u
}
