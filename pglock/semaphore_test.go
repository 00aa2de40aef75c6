package pglock_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/faultproxy"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
)

// rw is a readers–writer lock.
type rw struct{ read, write pglock.Lock }

func rwlock(c *pglock.Client, name string) rw { return rw{c.Reader(name), c.Writer(name)} }

// TestPermitsOfAGateWithAHolder: a role that may acquire locks writes a holder into the row of a name with
// permits, where no function does. Releases still return permits, and are told so.
func TestPermitsOfAGateWithAHolder(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	s := f.open().Semaphore("s", 3)
	some, all := tried(t, s), tried(t, s.Weight(2))
	f.sql("UPDATE pglock.distributed_locks SET holder = 'forged' WHERE name = 's'")
	release(t, some)
	some = tried(t, s)
	release(t, all)
	release(t, some)
	is(f, "permits in use", "0", "SELECT in_use::text FROM pglock.distributed_locks WHERE name = 's'")
	release(t, tried(t, s.Weight(3)))
}

// TestALockedGateIsBusy: another transaction keeps the row of a semaphore locked.
func TestALockedGateIsBusy(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	s := f.open().Semaphore("s", 2)
	release(t, tried(t, s))
	tx := begin(t, f)
	run(t, tx, f.named("SELECT FROM pglock.distributed_locks FOR UPDATE"))
	isBusy(t, "with a locked gate", s)
	got := async(t, s)
	must(t, tx.Rollback(t.Context()))
	release(t, next(t, got))
}

// TestAWaiterLooksOftenBesideAPermitThatAGuardUses: the end of the transaction that uses a released permit notifies
// nobody, so the waiter for whom the permit makes room is told no time to wait for, and does not sleep for longer and
// longer. In the control the permit is not released.
func TestAWaiterLooksOftenBesideAPermitThatAGuardUses(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.open(pglock.WithTTL(time.Hour))
	for _, name := range []string{"control", "released"} {
		var tries atomic.Int64
		proxy, far := f.proxied()
		proxy.OnRequest(func(r faultproxy.Request) faultproxy.Fate {
			if strings.Contains(r.SQL, ".acquire_slots(") {
				tries.Add(1)
			}
			return faultproxy.Pass
		})
		s := far.open().Semaphore(name, 2)
		other, used, tx := tried(t, c.Semaphore(name, 2)), tried(t, c.Semaphore(name, 2)), begin(t, f)
		must(t, used.Guard(t.Context(), tx))
		if name == "released" {
			release(t, used)
		}
		var busy *pglock.BusyError
		if _, err := s.TryAcquire(t.Context()); !errors.As(err, &busy) || (busy.Remaining == 0) != (name == "released") {
			t.Errorf("%s: %v", name, err)
		}
		got := waits(f, s)
		if name == "released" {
			pgtest.Eventually(t, "many tries", func() bool { return tries.Load() >= 40 })
			still(f, got)
		}
		must(t, tx.Commit(t.Context()))
		if name == "control" {
			release(t, used)
		}
		release(t, next(t, got))
		release(t, other)
	}
}

// TestAReleaseMeetsARenewal: a permit that a renewal has locked at the moment of its release is free
// at once, unlike one that a guarded transaction uses.
func TestAReleaseMeetsARenewal(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	s := f.open().Semaphore("s", 2)
	l := tried(t, s)
	renewal := begin(t, f)
	run(t, renewal, f.named("SELECT FROM pglock.lock_permits FOR NO KEY UPDATE"))
	released := make(chan error, 1)
	go func() { released <- l.Release(t.Context()) }()
	pgtest.Eventually(t, "the release waits for the renewal", func() bool {
		return value[int](f, "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype IN ('transactionid', 'tuple')") > 0
	})
	must(t, renewal.Commit(t.Context()))
	must(t, <-released)
	f.none("permits are not free", grants)
}

// TestAReleaseFreesExpiredPermits: a release frees what other, dead holders have left, so a waiter
// that needs both is woken by it.
func TestAReleaseFreesExpiredPermits(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	s := f.open().Semaphore("s", 3)
	tried(t, s, pglock.WithTTL(time.Second), pglock.WithRenewEvery(0))
	live := tried(t, s)
	until(f, "the expiry", 1, "SELECT count(*) FROM pglock.lock_permits WHERE expires_at < clock_timestamp()")
	is(f, "permits are in use before the release", 2, "SELECT in_use FROM pglock.distributed_locks")
	release(t, live)
	f.none("permits are in use after the release", "SELECT in_use FROM pglock.distributed_locks")
}

const acquirePermitsSQL = "SELECT outcome, token FROM pglock.acquire_slots('{s}', '{2}', ARRAY[$1::int], $2::text::uuid, 'x', '{}', 60000000, 9223372036854775807, true)"

// TestP49_ARepeatedRequestForPermitsIsDurable: the repetition of a request finds its own grant, and
// commits a change of its own after it, durably.
func TestP49_ARepeatedRequestForPermitsIsDurable(t *testing.T) {
	t.Parallel()
	const request = "00000000-0000-4000-8000-000000000001"
	f := newFixture(t)
	for _, weight := range []int{1, 2} {
		f.sql("DELETE FROM pglock.lock_permits")
		f.sql("DELETE FROM pglock.distributed_locks")
		var token, version [2]int64
		for i := range token {
			tx := begin(t, f)
			var outcome, durable string
			run(t, tx, "SET LOCAL synchronous_commit = off; SET LOCAL client_min_messages = error")
			if err := tx.QueryRow(t.Context(), f.named(acquirePermitsSQL), weight, request).Scan(&outcome, &token[i]); err != nil || outcome != "granted" {
				t.Fatalf("weight %d: %s, %v", weight, outcome, err)
			}
			err := tx.QueryRow(t.Context(), "SELECT current_setting('synchronous_commit') || ' ' || current_setting('client_min_messages')").Scan(&durable)
			if err != nil || durable != "on warning" {
				t.Errorf("weight %d, attempt %d commits with %s, %v", weight, i, durable, err)
			}
			must(t, tx.Commit(t.Context()))
			version[i] = value[int64](f, "SELECT version FROM pglock.distributed_locks")
		}
		if token[0] != token[1] || version[1] <= version[0] {
			t.Errorf("weight %d: tokens %v, versions of the gate %v", weight, token, version)
		}
	}
}

// TestADuplicateAfterTheRelease: a repeated attempt that reaches the server after the release grants
// nothing. If other permits were released meanwhile, the server can't tell, and the client revokes
// what it grants, to each of the attempts.
func TestADuplicateAfterTheRelease(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.open()
	s := c.Semaphore("s", 2)
	first := tried(t, s)
	request := value[string](f, "SELECT request::text FROM pglock.lock_permits")
	duplicate := func() (outcome string) {
		var token int64
		must(t, f.pool.QueryRow(t.Context(), f.named(acquirePermitsSQL), 1, request).Scan(&outcome, &token))
		return outcome
	}
	pglock.Repeated(first, 2)
	release(t, first)
	if got := duplicate(); got != "spent" {
		t.Errorf("after its release a request is %s", got)
	}
	for range 2 {
		release(t, tried(t, s))
		if got := duplicate(); got != "granted" {
			t.Errorf("after another release it is %s", got)
		}
		until(f, "the client revokes it", 0, "SELECT in_use FROM pglock.distributed_locks")
	}
}

// TestADuplicateAfterTheUpgrade: what a reader's repeated attempt is granted after its upgrade is
// revoked, too.
func TestADuplicateAfterTheUpgrade(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	reader := tried(t, f.open().Reader("s"))
	request := value[string](f, "SELECT request::text FROM pglock.lock_permits")
	pglock.Repeated(reader, 1)
	writer, err := reader.TryUpgrade(t.Context())
	must(t, err)
	release(t, writer)
	var outcome string
	sql := strings.Replace(f.named(acquirePermitsSQL), "{2}", "{1073741824}", 1)
	must(t, f.pool.QueryRow(t.Context(), sql, 1, request).Scan(&outcome, nil))
	if outcome != "granted" {
		t.Errorf("after the upgrade it is %s", outcome)
	}
	until(f, "the client revokes it", 0, "SELECT in_use FROM pglock.distributed_locks")
}

// TestNestedPermitsOfAnotherClient: a nested call through another client is recognized as nested.
func TestNestedPermitsOfAnotherClient(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		a, b := rwlock(f.open(), "rw"), rwlock(f.open(), "rw")
		r := tried(t, a.read)
		fails(t, "a writer inside its own reader", second(b.write.Acquire(r.Context())), pglock.ErrHeldByCaller)
		err := b.read.TryDo(r.Context(), func(_ context.Context, joined *pglock.Lease) error {
			if joined != r {
				t.Errorf("the joined lease has the token %d", joined.Token())
			}
			return nil
		}, pglock.WithJoin())
		check(t, err)
		release(t, r)
	})
}
