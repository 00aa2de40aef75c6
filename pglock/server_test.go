package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/pgtx"
	"github.com/pglock/pglock-go/internal/testserver"
	"github.com/pglock/pglock-go/pglock"
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

// TestAForgedTokenHarmsItsOwnNameAlone: a role that may acquire locks writes the highest number
// into a row, and lifts the sequence above it.
func TestAForgedTokenHarmsItsOwnNameAlone(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	f := on(t, url)
	c := f.open()
	release(t, try(t, c, "forged"))
	user := fixture{t, pgtest.UserPool(t, f.pool, f.schema), f.schema}
	user.sql("UPDATE pglock.distributed_locks SET token = 4611686018427387904, ticket = 9223372036854775806 WHERE name = 'forged'")
	for _, jump := range []string{
		"UPDATE pglock.distributed_locks SET token = 4611686018427387906 WHERE name = 'forged'",
		"UPDATE pglock.distributed_locks SET token = 9223372036854775807 WHERE name = 'forged'",
		"INSERT INTO pglock.distributed_locks SELECT 'new', 9223372036854775807, 1, 0, clock_timestamp(), '-infinity'",
	} {
		if _, err := user.pool.Exec(t.Context(), f.named(jump)); pgtx.SQLState(err) != pgtx.CheckViolation {
			t.Errorf("%s: %v", jump, err)
		}
	}
	user.sql("SELECT pglock.lift_fencing_tokens('forged')")
	release(t, try(t, c, "forged", pglock.WithBarging()))
	f.sql(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE '%pglock%' AND pid <> pg_backend_pid()`)
	if l := try(t, c, "another name"); l.Token() > 1000 {
		t.Errorf("token %d of a name that was not forged", l.Token())
	}
	if n, err := c.Prune(t.Context(), 0); n != 0 || err != nil { // its row is the only record of its token
		t.Errorf("Prune: %d, %v", n, err)
	}
}
