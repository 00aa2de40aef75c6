package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/observe"
)

// TestI11_ALockedRowDelaysNoOtherRenewal locks one row by hand.
func TestI11_ALockedRowDelaysNoOtherRenewal(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.open(pglock.WithRenewEvery(300 * time.Millisecond))
	locked, other := try(t, c, "locked", pglock.WithTTL(time.Second)), try(t, c, "other")
	tx := begin(t, f)
	run(t, tx, f.named("SELECT FROM pglock.distributed_locks WHERE name = 'locked' FOR UPDATE"))
	ends(t, "the locked one is lost in the end", locked.Done())
	if n := value[int64](f, "SELECT version FROM pglock.distributed_locks WHERE name = 'other'"); n < 2 || other.Err() != nil {
		t.Errorf("another lease, in the same renewals, was renewed %d times until then: %v", n-1, other.Err())
	}
	check(t, tx.Rollback(t.Context()))
	release(t, other)
}

// TestP12_AcquiresContextDoesNotEndTheLease, nor does the end of its wait. I8.
func TestP12_AcquiresContextDoesNotEndTheLease(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		c := f.open()
		type key struct{}
		ctx, cancel := context.WithTimeout(context.WithValue(t.Context(), key{}, "kept"), 20*time.Second)
		l, err := c.Acquire(ctx, "n", pglock.WithTTL(5*time.Second), pglock.WithWait(time.Second))
		must(t, err)
		cancel()
		rest(t, 6*time.Second) // longer than the TTL and the wait
		check(t, l.Err())
		if l.Context().Err() != nil || l.Context().Value(key{}) != "kept" {
			t.Errorf("the lease's context: %v, value %v", l.Context().Err(), l.Context().Value(key{}))
		}
		release(t, l)
	})
}

func TestExtend(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		c := f.open()
		l := try(t, c, "n", pglock.WithTTL(2*time.Second), pglock.WithRenewEvery(0))
		deadline := l.Deadline()
		if err := l.Extend(t.Context(), 100*time.Millisecond); err != nil || !l.Deadline().Equal(deadline) {
			t.Errorf("a lease with enough time left was renewed, or failed: %v", err)
		}
		must(t, l.Extend(t.Context(), time.Minute))
		if left := time.Until(l.Deadline()); left < 59*time.Second {
			t.Errorf("after Extend(1m) the lease is trusted for %v", left)
		}
		if k, err := c.Get(t.Context(), "n"); err != nil || k.Remaining < 59*time.Second || k.Token != l.Token() {
			t.Errorf("the table has %+v, %v", k, err)
		}
		fails(t, "a century", l.Extend(t.Context(), 100*365*24*time.Hour), pglock.ErrInvalidOption)
		release(t, l)
		fails(t, "after Release", l.Extend(t.Context(), time.Second), pglock.ErrReleased)
		lost := try(t, c, "n", pglock.WithRenewEvery(0))
		f.steal("n")
		if err := lost.Extend(t.Context(), time.Minute); !errors.Is(err, pglock.ErrLost) || lost.Err() == nil {
			t.Errorf("after a takeover: %v, then %v", err, lost.Err())
		}
	})
}

// TestRenewalsThatGatherFollowAtOnce: more leases are due than fit into the statements in flight.
// The others are renewed as soon as one of these is answered.
func TestRenewalsThatGatherFollowAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		c := f.open(pglock.WithBatches(2, false), pglock.WithTTL(4*time.Second), pglock.WithRenewEvery(2500*time.Millisecond))
		all := many(t, c, 20)
		rest(t, 6*time.Second)
		for _, l := range all {
			check(t, l.Err())
			release(t, l)
		}
	})
}

// TestShortLeasesDoNotWakeTheRenewer: leases that end long before they are due leave the plan of the
// renewer's loop as it is. It need not be woken for each of them.
func TestShortLeasesDoNotWakeTheRenewer(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		c := f.open()
		l := try(t, c, "n")
		synctest.Wait()
		first := pglock.NextLook(c)
		if until := time.Until(first); until > 30*time.Second {
			t.Errorf("the first lease is looked at after %v", until)
		}
		release(t, l)
		for range 20 {
			release(t, try(t, c, "n"))
			synctest.Wait()
			if next := pglock.NextLook(c); next.After(first) {
				t.Fatalf("the next look was at %v, and is put off by %v", first, next.Sub(first))
			}
		}
	})
}

// TestP10_P13_AHolderIsToldThatItsGrantIsGone. A renewal and a release change nothing that is not
// theirs.
func TestP10_P13_AHolderIsToldThatItsGrantIsGone(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(f fake){
		"taken over":            func(f fake) { f.steal("n") },
		"revoked":               func(f fake) { must(f.t, f.open().Revoke(f.t.Context(), "n", f.row("n").Token, "r")) },
		"expired on the server": func(f fake) { f.Expire("n", 0) },
	} {
		bubbles(t, name, func(t *testing.T, f fake) {
			l := try(t, f.open(), "n", pglock.WithTTL(time.Minute), pglock.WithRenewEvery(100*time.Millisecond))
			spoil(f)
			before := f.row("n")
			rest(t, 150*time.Millisecond)
			var lost *pglock.LostError
			if err := context.Cause(l.Context()); !errors.Is(err, pglock.ErrLost) || !errors.As(err, &lost) || lost.Token != l.Token() {
				t.Errorf("the cause is %v", err)
			}
			fails(t, "Release", l.Release(t.Context()), pglock.ErrLost)
			if after := f.row("n"); after.Token != before.Token || after.Holder != before.Holder || after.Remaining > before.Remaining {
				t.Errorf("the row was %+v, and is %+v", before, after)
			}
		})
	}
}

// TestP14_RenewalAnswerLost drops the answers to applied renewals.
func TestP14_RenewalAnswerLost(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		const ttl, every = 20 * time.Second, 200 * time.Millisecond
		proxy, far := f.proxied()
		l := try(t, far.open(), "n", pglock.WithTTL(ttl), pglock.WithRenewEvery(every))
		granted := f.expiry("n")
		proxy.DropReplies()
		rest(t, 2*every)
		if known := l.Deadline(); !f.expiry("n").After(granted) || known.After(granted) {
			t.Errorf("control: the server keeps the lock until %v, before until %v, the holder until %v", f.expiry("n"), granted, known)
		}
		proxy.Heal()
		proxy.Sever()
		rest(t, ttl)
		check(t, l.Err())
		release(t, l)
	})
}

// TestRenewalNeverShortens: renewals go on after Extend.
func TestRenewalNeverShortens(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		l := try(t, f.open(), "n", pglock.WithTTL(5*time.Second), pglock.WithRenewEvery(50*time.Millisecond))
		must(t, l.Extend(t.Context(), time.Minute))
		rest(t, 10*time.Second)
		if server, local := f.left("n"), time.Until(l.Deadline()); server < 50*time.Second || local < 49*time.Second {
			t.Errorf("of the minute that was ensured 10 s ago, %v are left on the server and %v here", server, local)
		}
		rest(t, time.Minute)
		check(t, l.Err()) // renewals have gone on
		release(t, l)
	})
}

// TestASlowServerLosesNoLease: the round trip takes a sixth of the TTL, or 30 % of it. One caller or many at
// a time are granted their leases, again and again, and keep each for longer than its TTL, with a handful of
// connections.
func TestASlowServerLosesNoLease(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		roundTrip, hold time.Duration
		callers, rounds int
	}{
		{480 * time.Millisecond, 10 * time.Second, 1, 1},
		{900 * time.Millisecond, 10 * time.Second, 1, 1},
		{510 * time.Millisecond, 4500 * time.Millisecond, 16, 3},
	} {
		bubbles(t, fmt.Sprint(tc.roundTrip, ", callers: ", tc.callers), func(t *testing.T, f fake) {
			proxy, far := f.proxied()
			proxy.Delay(tc.roundTrip)
			c := far.open(pglock.WithTTL(3 * time.Second))
			var wg sync.WaitGroup
			for i := range tc.callers {
				wg.Go(func() {
					for range tc.rounds {
						name := fmt.Sprint(i)
						l := acquire(t, c, name)
						for began := time.Now(); time.Since(began) < tc.hold; rest(t, 100*time.Millisecond) {
							if deadline, expiry := l.Deadline(), f.expiry(name); deadline.After(expiry) { // I3
								t.Errorf("trusted until %v after the server's expiry", deadline.Sub(expiry))
							}
						}
						check(t, l.Err())
						release(t, l)
					}
				})
			}
			wg.Wait()
		})
	}
}

// TestP47_RenewalsDoNotComeLate: a renewal planned shortly before the deadline, by a twentieth of the TTL,
// is never later than planned.
func TestP47_RenewalsDoNotComeLate(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		c := f.open(pglock.WithTTL(4*time.Second), pglock.WithSafetyMargin(400*time.Millisecond), pglock.WithRenewEvery(3400*time.Millisecond))
		all := many(t, c, 20)
		rest(t, time.Hour)
		for _, l := range all {
			check(t, l.Err())
			release(t, l)
		}
	})
}

// TestLeasesOfAllLengths has them in one client: each is renewed as often as its own TTL needs.
func TestLeasesOfAllLengths(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		const each, during = 10, 10 * time.Minute
		r := &recorder{}
		c, all := f.open(pglock.WithObserver(r.hooks())), map[string][]*pglock.Lease{}
		lengths := []time.Duration{2 * time.Second, 5 * time.Second, 12 * time.Second, 40 * time.Second}
		for _, ttl := range lengths {
			for i := range each {
				all[ttl.String()] = append(all[ttl.String()], try(t, c, fmt.Sprint(ttl, " ", i), pglock.WithTTL(ttl)))
			}
		}
		rest(t, during)
		renewals := map[string]int{}
		for _, e := range events[observe.RenewalEvent](r) {
			ttl, _, _ := strings.Cut(e.Name, " ")
			renewals[ttl]++
		}
		for _, ttl := range lengths {
			n, due := renewals[ttl.String()], each*int(during/(ttl/3))
			if n < due || n > due*5/4 {
				t.Errorf("leases of %v were renewed %d times, due were %d", ttl, n, due)
			}
			for _, l := range all[ttl.String()] {
				check(t, l.Err())
				release(t, l)
			}
		}
	})
}

func TestP02_OneGrantOneToken(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		l := try(t, f.open(), "n", pglock.WithRenewEvery(30*time.Millisecond))
		rest(t, time.Second)
		if token := f.row("n").Token; token != l.Token() {
			t.Errorf("after renewals the token is %d, it was granted as %d", token, l.Token())
		}
		release(t, l)
	})
}

// TestAPlannerWithoutNestedLoops: a role or a database may turn them off. Renewals would then read the
// whole table, and lose short leases.
func TestAPlannerWithoutNestedLoops(t *testing.T) {
	t.Parallel()
	const names, changes = 50_000, 10
	f := newFixture(t)
	f.sql(`INSERT INTO pglock.distributed_locks (name, token, version, acquired_at, expires_at)
	       SELECT md5(i::text), pglock.next_fencing_token(), 1, now(), '-infinity' FROM generate_series(1, $1::int) AS i`, names)
	f.sql("ANALYZE pglock.distributed_locks")
	pool := pgtest.PoolOn(t, f.pool.Config().ConnString(), func(config *pgxpool.Config) {
		config.ConnConfig.RuntimeParams["enable_nestloop"] = "off"
	})
	c := fixture{t, pool, f.schema}.openUnclosed(pglock.WithRetention(0), pglock.WithPollOnly(), pglock.WithTTL(time.Minute))
	const stat = " FROM pg_stat_user_tables WHERE relname = 'distributed_locks' AND schemaname = $1"
	read := value[int](f, "SELECT seq_tup_read"+stat, f.schema)
	changed := value[int](f, "SELECT n_tup_upd"+stat, f.schema)
	l := try(t, c, "n")
	for i := range changes {
		must(t, l.Extend(t.Context(), time.Hour+time.Duration(i)*time.Minute))
	}
	release(t, l)
	if err := c.Close(t.Context()); err != nil { // its connections report what they have read
		t.Fatal(err)
	}
	pgtest.Eventually(t, "the statistics", func() bool {
		return value[int](f, "SELECT n_tup_upd"+stat, f.schema) >= changed+changes
	})
	if n := value[int](f, "SELECT seq_tup_read"+stat, f.schema) - read; n >= names {
		t.Errorf("%d rows were read one after the other", n)
	}
}
