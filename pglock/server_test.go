package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/faultproxy"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/pgtx"
	"github.com/pglock/pglock-go/internal/testserver"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/inspect"
)

// hosts returns the URL of the first server with the addresses of all, in that order.
func hosts(t *testing.T, servers ...*testserver.Server) string {
	t.Helper()
	u, err := url.Parse(servers[0].URL())
	must(t, err)
	addresses := make([]string, len(servers))
	for i, s := range servers {
		addresses[i] = s.Addr()
	}
	u.Host = strings.Join(addresses, ",")
	query := u.Query()
	query.Set("target_session_attrs", "read-write")
	u.RawQuery = query.Encode()
	return u.String()
}

// standbys starts n servers that follow the primary.
func standbys(t *testing.T, primary *testserver.Server, n int) (all []*testserver.Server) {
	t.Helper()
	for range n {
		all = append(all, pgtest.Standby(t, primary))
	}
	return all
}

// follow waits until the standby has the row of that name.
func (f fixture) follow(standby *testserver.Server, name string) fixture {
	f.t.Helper()
	there := fixture{f.t, pgtest.PoolOn(f.t, standby.URL()), f.schema}
	version := value[int64](f, "SELECT version FROM pglock.distributed_locks WHERE name = $1", name)
	pgtest.Eventually(f.t, "the standby follows", func() bool {
		return value[int64](there, "SELECT coalesce(max(version), 0) FROM pglock.distributed_locks WHERE name = $1", name) >= version
	})
	return there
}

// TestLookingFromAStandby: a client with WithStandby looks there, knows no waiters, and changes nothing. The
// view of an unlogged table fails, as docs/reference/sql.md says. A client without the option refuses a standby.
func TestLookingFromAStandby(t *testing.T) {
	t.Parallel()
	primary := pgtest.Server(t, testserver.Options{})
	f := on(t, primary.URL())
	standby := standbys(t, primary, 1)[0]
	client := f.openUnclosed(pglock.WithTTL(time.Hour))
	lease := try(t, client, "n")
	leaving(t.Context(), client.Lock("n"))
	until(f, "another call waits", 1, "SELECT count(*) FROM pglock.locks_waiting")
	there := f.follow(standby, "n")
	is(there, "held", 1, "SELECT count(*) FROM pglock.locks_held WHERE name = 'n'")
	for _, view := range []string{"schedules", "once_started", "protected_tables"} {
		is(there, view, 0, "SELECT count(*) FROM pglock."+view)
	}
	if _, err := there.pool.Exec(t.Context(), f.named("SELECT FROM pglock.locks_waiting")); pgtx.SQLState(err) != pgtx.FeatureNotSupported {
		t.Errorf("the waiters: %v", err)
	}
	_, err := pglock.Open(t.Context(), there.pool, pglock.WithSchema(f.schema))
	if !errors.Is(err, pglock.ErrUnavailable) || !strings.Contains(err.Error(), "a standby: name all hosts") {
		t.Errorf("a client: %v", err)
	}

	looks := there.open(pglock.WithStandby())
	sees := func(c *pglock.Client, what string, onStandby bool, waiters int) {
		t.Helper()
		s, err := c.Snapshot(t.Context(), inspect.Query{Filter: inspect.Filter{Held: true}})
		must(t, err)
		got, err := c.Get(t.Context(), "n")
		must(t, err)
		locks := append(s.Locks, got)
		for l, err := range c.Locks(t.Context(), inspect.Filter{Held: true}) {
			must(t, err)
			locks = append(locks, l)
		}
		if s.Server.Standby != onStandby || s.Server.Waiting != waiters || len(locks) != 3 {
			t.Errorf("%s: %+v, locks %+v", what, s.Server, locks)
		}
		for _, l := range locks {
			if l.Token != lease.Token() || !l.Held() || l.Standby != onStandby || len(l.Waiters) != waiters {
				t.Errorf("%s: %+v", what, l)
			}
		}
	}
	sees(client, "the primary, as a control", false, 1)
	sees(looks, "the standby", true, 0)
	looksOnly := f.through(primary.URL() + "&default_transaction_read_only=on").open(pglock.WithStandby())
	sees(looksOnly, "a read-only session", false, 1)
	for _, c := range []*pglock.Client{looks, looksOnly} {
		if err := c.RequestRelease(t.Context(), "n", lease.Token(), ""); !errors.Is(err, pglock.ErrUnavailable) || !strings.Contains(err.Error(), "connect to the primary") {
			t.Errorf("an action: %v", err)
		}
		_, err := c.TryAcquire(t.Context(), "free")
		fails(t, "an acquire", err, pglock.ErrUnavailable)
	}

	behind := func(what string, is func(time.Duration) bool) {
		t.Helper()
		pgtest.Eventually(t, what, func() bool {
			f.sql("UPDATE pglock.distributed_locks SET version = version + 1 WHERE name = 'n'")
			s, err := looks.Snapshot(t.Context(), inspect.Query{})
			must(t, err)
			return is(s.Server.Behind)
		})
	}
	there.sql("SELECT pg_wal_replay_pause()")
	behind("the standby is behind", func(d time.Duration) bool { return d > 100*time.Millisecond })
	there.sql("SELECT pg_wal_replay_resume()")
	behind("the standby is up to date", func(d time.Duration) bool { return d == 0 })

	stop(t, primary)
	_ = client.Close(bounded(t, time.Second)) // which can't release anything
	promote(t, standby)
	if value[int](there, "SELECT current_setting('server_version_num')::int") >= 140000 { // the others do not report it
		sees(looks, "the new primary", false, 0)
		there.sql("SELECT pglock.wait_ticket('n', 'c', 'h')")
		sees(looks, "a waiter there", false, 1)
	}
}

func promote(t *testing.T, standby *testserver.Server) {
	t.Helper()
	ctx := bounded(t, time.Minute)
	must(t, standby.Promote(ctx))
}

func stop(t *testing.T, server *testserver.Server) {
	t.Helper()
	must(t, server.Stop(testserver.Immediate))
}

// TestI2_P07_P50_TokensOutliveFailoversThatLoseGrants promotes a standby that was cut off before the last
// grants. When that dies, it promotes another one, which knows neither these grants nor those of the first
// one. Both standbys use timeline 2.
func TestI2_P07_P50_TokensOutliveFailoversThatLoseGrants(t *testing.T) {
	t.Parallel()
	primary := pgtest.Server(t, testserver.Options{})
	f := on(t, primary.URL())
	// granted returns the last token of many grants by a client on f.
	granted := func(f fixture) (last int64) {
		c := f.openUnclosed()
		for i := range 200 {
			l := try(t, c, fmt.Sprint("n", i%10))
			last = int64(l.Token())
			release(t, l)
		}
		check(t, c.Close(t.Context()))
		return last
	}
	granted(f)
	s := standbys(t, primary, 2)
	there := []fixture{f.follow(s[0], "n9"), f.follow(s[1], "n9")}
	for _, g := range there { // cut off in both directions
		g.sql("ALTER SYSTEM SET primary_conninfo = ''")
		g.sql("SELECT pg_reload_conf()")
	}
	until(f, "the standbys are cut off", 0, "SELECT count(*) FROM pg_stat_replication")
	last, server := granted(f), primary
	for i, g := range there {
		stop(t, server)
		server = s[i]
		promote(t, server)
		// The control: neither the sequence nor the timeline alone is above the grants before.
		if drawn := value[int64](g, "SELECT last_value FROM pglock.fencing_tokens"); drawn > last {
			t.Errorf("control: standby %d is at %d by itself, after %d", i, drawn, last)
		}
		if i == 1 {
			if drawn := value[int64](g, "SELECT pglock.next_fencing_token()"); drawn > last || drawn/epoch != last/epoch {
				t.Errorf("control: standby %d draws %d after %d by itself", i, drawn, last)
			}
		}
		c := g.openUnclosed()
		l := try(t, c, "n1")
		t.Logf("granted up to %d, then %d by the promoted standby %d", last, l.Token(), i)
		if int64(l.Token()) <= last {
			t.Errorf("standby %d granted token %d after %d", i, l.Token(), last)
		}
		release(t, l)
		check(t, c.Close(t.Context()))
		last = granted(g)
	}
}

// TestI2_P50_AnOldPrimaryThatCameBackIsRefused: the first host of the list is a primary that was
// replaced and came back. A client that has seen its successor refuses it, even if it is the only
// one left.
func TestI2_P50_AnOldPrimaryThatCameBackIsRefused(t *testing.T) {
	t.Parallel()
	old := pgtest.Server(t, testserver.Options{})
	f := on(t, old.URL())
	c := f.openUnclosed()
	release(t, try(t, c, "n"))
	successor := standbys(t, old, 1)[0]
	release(t, try(t, c, "n"))
	there := f.follow(successor, "n")
	check(t, c.Close(t.Context()))
	stop(t, old)
	promote(t, successor)
	both := fixture{t, pgtest.PoolOn(t, hosts(t, old, successor)), f.schema}
	c = both.openUnclosed()
	waits := both.openUnclosed() // is granted nothing: it has seen the server only
	before := try(t, c, "n")
	release(t, before)
	must(t, old.Start())
	// The control: a new client uses the first host that accepts writes.
	fresh := both.openUnclosed()
	if l := try(t, fresh, "n"); l.Token() >= before.Token() {
		t.Errorf("control: token %d, so the old primary was not used", l.Token())
	}
	reconnect := func() {
		there.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE '%pglock%' AND pid <> pg_backend_pid()")
	}
	reconnect()
	after := try(t, c, "n")
	grows(t, before, after)
	release(t, after)
	if l := try(t, waits, "m"); l.Token() <= after.Token() {
		t.Errorf("a client that had only seen the new primary was granted %d after %d", l.Token(), after.Token())
	}
	stop(t, successor)
	if _, err := c.TryAcquire(t.Context(), "n"); !errors.Is(err, pglock.ErrUnavailable) || !strings.Contains(err.Error(), "behind") {
		t.Errorf("with the old primary alone: %v", err)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	for _, c := range []*pglock.Client{c, waits, fresh} {
		_ = c.Close(ended)
	}
}

// TestI11_NoLockOfAnUnprivilegedRoleDelaysAGrant: a role with only the right to connect takes all
// advisory locks that the package could use, including those with keys from the catalog.
func TestI11_NoLockOfAnUnprivilegedRoleDelaysAGrant(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.open()
	if n := value[int](f, `SELECT count(*) FROM pg_proc WHERE pronamespace = (SELECT oid FROM pg_namespace WHERE nspname = $1)
		AND prosrc ~ 'advisory_(xact_)?lock'`, f.schema); n != 0 {
		t.Errorf("%d functions take an advisory lock", n)
	}
	role := `"nobody of ` + strings.ReplaceAll(f.schema, `"`, `""`) + `"`
	f.sql("CREATE ROLE " + role)
	t.Cleanup(func() { _, _ = f.pool.Exec(context.Background(), "DROP ROLE "+role) })
	conn, err := f.pool.Acquire(t.Context())
	must(t, err)
	defer conn.Release()
	for _, statement := range []string{
		"SET ROLE " + role,
		`SELECT pg_advisory_lock(8099561661666426880 + 2 * oid::bigint), pg_advisory_lock(8099561661666426880 + 2 * oid::bigint + 1)
		 FROM pg_class WHERE relname = 'distributed_locks'`,
	} {
		if _, err := conn.Exec(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	defer func() {
		_, _ = conn.Exec(context.Background(), "SELECT pg_advisory_unlock_all()")
		_, _ = conn.Exec(context.Background(), "RESET ROLE")
	}()
	for _, locks := range []string{"pglock.distributed_locks", "pglock.lock_waiters", "pglock.fencing_epoch"} {
		if _, err := conn.Exec(t.Context(), f.named("LOCK TABLE "+locks+" IN ACCESS SHARE MODE")); err == nil {
			t.Errorf("a role without rights locks %s", locks)
		}
	}
	ctx := bounded(t, pgtest.Patience)
	l, err := c.TryAcquire(ctx, "a new name")
	must(t, err)
	release(t, l)
	if n, err := c.Prune(ctx, 0); n != 1 || err != nil {
		t.Errorf("Prune: %d, %v", n, err)
	}
	f.sql("UPDATE pglock.fencing_epoch SET system = 1")
	release(t, try(t, f.open(), "another"))
}

// TestAUserCanLockTheTables: as the threat model of package fencing says, nothing is granted until the session ends.
func TestAUserCanLockTheTables(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.open()
	tx := begin(t, fixture{t, pgtest.UserPool(t, f.pool, f.schema), f.schema})
	run(t, tx, f.named("LOCK TABLE pglock.distributed_locks"))
	fails(t, "beside it", second(c.TryAcquire(bounded(t, time.Second), "n")), context.DeadlineExceeded)
	f.sql("SELECT pg_terminate_backend($1::int)", tx.Conn().PgConn().PID())
	release(t, try(t, c, "another"))
}

// TestAForgedNumberHarmsItsOwnNameAlone: a role that may acquire locks writes extreme numbers into each column that it
// may write, by statements and by the protocol, and has the sequence lifted above them. Other names are granted tokens
// of the first range, by clients that were there and by new ones, which acquire the forged name too.
func TestAForgedNumberHarmsItsOwnNameAlone(t *testing.T) {
	t.Parallel()
	f := on(t, pgtest.Database(t))
	c := f.open()
	for _, name := range []string{"forged", "ticket"} {
		release(t, try(t, c, name))
	}
	user := fixture{t, pgtest.UserPool(t, f.pool, f.schema), f.schema}
	for _, jump := range []string{
		"UPDATE pglock.distributed_locks SET token = 4611686018427387907 WHERE name = 'forged'",
		"UPDATE pglock.distributed_locks SET token = 9223372036854775807 WHERE name = 'forged'",
		"INSERT INTO pglock.distributed_locks SELECT 'new', 9223372036854775807, 1, 0, clock_timestamp(), '-infinity'",
	} {
		if _, err := user.pool.Exec(t.Context(), f.named(jump)); pgtx.SQLState(err) != pgtx.CheckViolation {
			t.Errorf("%s: %v", jump, err)
		}
	}
	user.sql("INSERT INTO pglock.lock_waiters (name, client, expires_at) VALUES ('forged', 'forger', '2261-12-31')")
	user.sql(`INSERT INTO pglock.lock_permits (name, token, weight, version, acquired_at, expires_at, request, holder)
		VALUES ('forged', 1, 1, 1, clock_timestamp(), '2261-12-31', gen_random_uuid(), 'forger')`)
	var columns []string
	must(t, user.pool.QueryRow(t.Context(), f.named(`
		SELECT array_agg(format('%I SET %I', c.relname, a.attname) ORDER BY c.relname, a.attnum)
		FROM pg_attribute AS a JOIN pg_class AS c ON c.oid = a.attrelid JOIN pg_type AS t ON t.oid = a.atttypid
		WHERE c.relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = $1) AND c.relkind = 'r' AND a.attnum > 0
		  AND coalesce(nullif(t.typbasetype, 0), t.oid) IN ('bigint'::regtype, 'integer'::regtype)
		  AND has_column_privilege(c.oid, a.attnum, 'UPDATE')`), f.schema).Scan(&columns))
	if len(columns) < 12 {
		t.Fatalf("columns: %q", columns)
	}
	forged := 0
	for _, column := range columns {
		for _, number := range []string{"9223372036854775806", "4611686018427387904", "4611686018427387903", "8796093022209", "2147483647", "-1"} {
			rows := " WHERE name = 'forged'"
			if strings.HasPrefix(column, "once_keys") || strings.HasPrefix(column, "nested_waits") {
				rows = ""
			}
			if _, err := user.pool.Exec(t.Context(), f.named("UPDATE pglock."+column+" = "+number+rows)); err == nil {
				forged++
			}
			user.sql("SELECT pglock.lift_fencing_tokens('forged')")
			user.sql("SELECT pglock.acquire('ticket', 'forger', '1 ms', ticket => " + number + ")")
			user.sql("SELECT pglock.lift_fencing_tokens('ticket')")
		}
	}
	if forged < 20 {
		t.Errorf("%d numbers were written", forged)
	}
	_, err := c.TryAcquire(t.Context(), "forged", pglock.WithBarging()) // may fail, and is not to be believed
	t.Log("the forged name:", err)
	f.sql(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE '%pglock%' AND pid <> pg_backend_pid()`)
	for who, client := range map[string]*pglock.Client{"the client": c, "a new client": f.open()} {
		for range 2 {
			l := try(t, client, "another name")
			if l.Token() > 1<<43 { // the middle of the first range: see evidence_bound
				t.Errorf("%s: token %d of a name that was not forged", who, l.Token())
			}
			release(t, l)
		}
		if _, err := client.Prune(t.Context(), 0); err != nil {
			t.Errorf("%s: Prune: %v", who, err)
		}
	}
	is(f, "rows of the forged name, the only record of its token", 1, "SELECT count(*) FROM pglock.distributed_locks WHERE name = 'forged'")
	// Tickets are drawn and used by others as before.
	held := try(t, c, "another name")
	got := async(t, f.open().Lock("another name"))
	for f.tickets("another name") == 0 {
		rest(t, 10*time.Millisecond)
	}
	release(t, held)
	release(t, next(t, got))
}

// TestAForgedGrantStopsNoClient: a role forges the token of a grant whose answer was lost, so that the client has that
// token. The client does not refuse its servers because they have not drawn it.
func TestAForgedGrantStopsNoClient(t *testing.T) {
	t.Parallel()
	const token = 4611686018427387903
	f := newFixture(t)
	user := pgtest.UserPool(t, f.pool, f.schema)
	proxy, far := f.proxied()
	release(t, try(t, f.open(), "forged"))
	var lost atomic.Bool
	proxy.OnRequest(func(r faultproxy.Request) faultproxy.Fate {
		if strings.Contains(r.SQL, "next_fencing_token") && lost.CompareAndSwap(false, true) {
			return faultproxy.LoseReply
		}
		if lost.Load() {
			_, err := user.Exec(context.Background(), f.named("UPDATE pglock.distributed_locks SET token = $1 WHERE name = 'forged' AND token < $1"), token)
			check(t, err)
		}
		return faultproxy.Pass
	})
	c := far.open()
	l := acquire(t, c, "forged")
	if l.Token() != token {
		t.Errorf("control: token %d", l.Token())
	}
	proxy.Sever()
	release(t, try(t, c, "another name"))
	release(t, l)
}

// TestAReaderDelaysNoConnection: after a failover a role that may only look calls what each new connection calls, and
// keeps its transaction open. The control is a role that may lift the tokens, for which others wait.
func TestAReaderDelaysNoConnection(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	release(t, try(t, f.open(), "n"))
	for _, tc := range []struct {
		who   string
		pool  *pgxpool.Pool
		waits bool
	}{
		{"reader", pgtest.ReaderPool(t, f.pool, f.schema), false},
		{"control: user", pgtest.UserPool(t, f.pool, f.schema), true},
	} {
		f.sql("UPDATE pglock.fencing_epoch SET system = 1")
		tx := begin(t, fixture{t, tc.pool, f.schema})
		var highest int64
		must(t, tx.QueryRow(t.Context(), f.named("SELECT pglock.lift_fencing_tokens()")).Scan(&highest))
		if highest < 1 {
			t.Errorf("%s: the highest token is %d", tc.who, highest)
		}
		var beside int64
		err := f.pool.QueryRow(t.Context(), f.named("SELECT pglock.lift_fencing_tokens('n') WHERE set_config('lock_timeout', '100ms', true) <> ''")).Scan(&beside)
		if waits := pgtx.SQLState(err) == "55P03"; waits != tc.waits {
			t.Errorf("beside an open transaction of a %s: %v", tc.who, err)
		}
		check(t, tx.Rollback(t.Context()))
	}
}
