package pglock_test

import (
	"context"
	"errors"
	"slices"
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

// TestKindsDoNotMix, neither while the lock is held nor when it is free.
func TestKindsDoNotMix(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.open()
	kinds := map[string]func(name string) pglock.Lock{
		"lock":      c.Lock,
		"semaphore": func(name string) pglock.Lock { return c.Semaphore(name, 3) },
		"another":   func(name string) pglock.Lock { return c.Semaphore(name, 4) },
		"reader":    c.Reader,
		"several":   func(name string) pglock.Lock { return c.All(c.Lock("a"), c.Semaphore(name, 5)) },
	}
	found := map[string]string{"lock": "is a lock with one holder, not", "semaphore": "is a semaphore with 3 permits, not", "reader": "is a readers-writer lock, not"}
	for name, says := range found {
		refused := func(what string, err error) {
			t.Helper()
			var kind *pglock.KindError
			if !errors.Is(err, pglock.ErrKind) || !errors.As(err, &kind) || kind.Name != name ||
				!strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%s as %s: %v", name, what, err)
			}
		}
		l := held(t, kinds[name](name))
		for _, state := range []string{"held", "free"} {
			for what, as := range kinds {
				if what != name {
					refused(state+" "+what, second(as(name).Acquire(t.Context())))
					refused(state+" "+what, second(as(name).TryAcquire(t.Context())))
				}
			}
			if state == "held" {
				check(t, l.Err())
				release(t, l)
			}
		}
		if name != "semaphore" {
			refused("resize", c.Resize(t.Context(), name, 4))
		}
		release(t, held(t, kinds[name](name))) // the refused calls have changed nothing
	}
	f.none("refused names have rows", "SELECT count(*) FROM pglock.distributed_locks WHERE name = 'a'")
	l := held(t, c.Reader("reader"))
	fails(t, "a lease with one holder joins a reader", c.TryDo(l.Context(), "reader", func(context.Context, *pglock.Lease) error { return nil }, pglock.WithJoin()), pglock.ErrKind)
	release(t, l)
}

func TestSemaphoreBadInput(t *testing.T) {
	t.Parallel()
	c := newFixture(t).open()
	s := c.Semaphore("s", 3)
	for what, l := range map[string]pglock.Lock{
		"no permits": c.Semaphore("s", 0), "negative": c.Semaphore("s", -1), "too many": c.Semaphore("s", pglock.MaxPermits+1),
		"no name": c.Semaphore("", 1), "NUL": c.Reader("a\x00b"), "weight 0": s.Weight(0), "weight -1": s.Weight(-1), "weight 4": s.Weight(4),
	} {
		_, err := l.Acquire(t.Context())
		fails(t, what, err, pglock.ErrInvalidOption)
	}
	_, err := s.Acquire(t.Context(), pglock.WithMinHold(time.Minute))
	fails(t, "WithMinHold", err, pglock.ErrInvalidOption)
	fails(t, "WithJoin", s.Do(t.Context(), func(context.Context, *pglock.Lease) error { return nil }, pglock.WithJoin()), pglock.ErrInvalidOption)
}

// TestPruneOfPermits: a name with a live permit is kept; an idle one goes, with its dead permits.
func TestPruneOfPermits(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c, dead := f.open(pglock.WithRetention(0)), f.openUnclosed()
	live := tried(t, c.Semaphore("live", 2))
	tried(t, dead.Semaphore("dead", 2))
	_ = dead.Close(t.Context())
	f.sql("INSERT INTO pglock.lock_permits VALUES ('dead', 1, 1, 1, clock_timestamp(), clock_timestamp(), gen_random_uuid(), 'h')")
	f.sql("UPDATE pglock.lock_permits SET expires_at = clock_timestamp() - interval '3 hours' WHERE name = 'dead'")
	f.sql("UPDATE pglock.distributed_locks SET acquired_at = clock_timestamp() - interval '3 hours', ended_at = NULL")
	if n, err := c.Prune(t.Context(), 2*time.Hour); err != nil || n != 1 {
		t.Errorf("pruned %d names, %v", n, err)
	}
	is(f, "names whose permits are left", "live", "SELECT string_agg(name, ' ') FROM pglock.lock_permits")
	release(t, live)
}

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

// TestP67_ADeadWriterDoesNotBlockReaders: a writer that waits behind a reader keeps newcomers out as long as its process
// lives, through more than one lifetime of its ticket, and for a few seconds longer.
func TestP67_ADeadWriterDoesNotBlockReaders(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	proxy := faultproxy.New(t, address(f.pool.Config().ConnConfig))
	reader := held(t, rwlock(f.open(), "rw").read)
	defer release(t, reader)
	ctx, cancel := context.WithCancel(t.Context())
	writer := f.through(proxy.URL(pgtest.URL(t))).openUnclosed()
	gone := leaving(ctx, rwlock(writer, "rw").write)
	refreshed := func() (at time.Time) {
		_ = f.pool.QueryRow(t.Context(), f.named("SELECT expires_at FROM pglock.lock_waiters WHERE weight > 1")).Scan(&at)
		return at
	}
	pgtest.Eventually(t, "the writer has a ticket", func() bool { return !refreshed().IsZero() })
	newcomer := rwlock(f.open(), "rw")
	first := refreshed()
	pgtest.Eventually(t, "the ticket outlives its first lifetime twice", func() bool {
		before := refreshed()
		l, err := newcomer.read.TryAcquire(t.Context())
		switch {
		case err == nil && refreshed() != before: // the machine was so slow that the ticket had expired
			release(t, l)
		case !errors.Is(err, pglock.ErrNotAcquired):
			t.Fatalf("a newcomer overtook a living writer: %v, %v", l, err)
		}
		return refreshed().Sub(first) > 6*time.Second
	})
	proxy.Cut()
	died := time.Now()
	l := held(t, newcomer.read)
	atMost(t, 10*time.Second, "a dead writer kept a reader out", died) // a ticket for one permit lives for 15 s
	release(t, l)
	proxy.Heal()
	cancel()
	fails(t, "told", <-gone, context.Canceled)
	_ = writer.Close(t.Context())
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

// TestResizeWakesAllWaiters, each of which fails, while a resize to the same number wakes the head.
func TestResizeWakesAllWaiters(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.open()
	holder := tried(t, c.Semaphore("s", 2).Weight(2))
	defer release(t, holder)
	conn, err := f.pool.Acquire(t.Context())
	must(t, err)
	defer conn.Release()
	for _, client := range []string{"first", "second", "third", "told"} {
		_, err := conn.Exec(t.Context(), "LISTEN "+client)
		must(t, err)
	}
	f.sql("INSERT INTO pglock.lock_waiters (name, client, ticket, expires_at, since, holder, weight) " +
		"SELECT 's', w.client, pglock.next_ticket(), clock_timestamp() + interval '1 hour', clock_timestamp(), 'h', 1 " +
		"FROM unnest('{first,second,third}'::text[]) AS w (client)")
	for n, want := range map[int][]string{2: {"first"}, 1: {"first", "second", "third"}} {
		must(t, c.Resize(t.Context(), "s", 2)) // the order of the cases does not matter
		f.sql("NOTIFY told")
		until := func(last string) (all []string) {
			for {
				got, err := conn.Conn().WaitForNotification(bounded(t, pgtest.Patience))
				must(t, err)
				if got.Channel == last {
					return all
				}
				all = append(all, got.Channel)
			}
		}
		until("told")
		must(t, c.Resize(t.Context(), "s", n))
		f.sql("NOTIFY told")
		if got := until("told"); !slices.Equal(got, want) {
			t.Errorf("a resize to %d has woken %q, want %q", n, got, want)
		}
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
// what it grants.
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
	pglock.Repeated(first)
	release(t, first)
	if got := duplicate(); got != "spent" {
		t.Errorf("after its release a request is %s", got)
	}
	release(t, tried(t, s))
	if got := duplicate(); got != "granted" {
		t.Errorf("after another release it is %s", got)
	}
	until(f, "the client revokes it", 0, "SELECT in_use FROM pglock.distributed_locks")
}

// TestASuccessorHasItsOwnWeight: a waiter that takes over the ticket of another one of its process is
// in the queue with the number of permits that it needs itself.
func TestASuccessorHasItsOwnWeight(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	second := f.open()
	a, b := f.open().Semaphore("s", 3), second.Semaphore("s", 3)
	held := tried(t, a.Weight(2))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	left := leaving(ctx, b.Weight(3))
	f.waiters(1)
	granted := async(t, b.Weight(2))
	weight := func() int { return value[int](f, "SELECT weight FROM pglock.lock_waiters") }
	pgtest.Eventually(t, "the second waiter", func() bool { return pglock.Waiting(second, "s") == 2 })
	if n := weight(); n != 3 {
		t.Fatalf("the head needs %d permits", n)
	}
	cancel()
	fails(t, "the first waiter", <-left, context.Canceled)
	pgtest.Eventually(t, "the weight of the successor", func() bool { return weight() == 2 })
	release(t, held)
	release(t, next(t, granted))
}

// TestNestedPermitsOfAnotherClient: a nested call through another client is recognized as nested.
func TestNestedPermitsOfAnotherClient(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
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
}
