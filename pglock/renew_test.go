package pglock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
)

func TestP10_P13_AHolderIsToldThatItsGrantIsGone(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.open()
	// P13: the row stays as it is: a renewal does not undo these changes.
	for name, tc := range map[string]struct{ spoil, stays string }{
		"taken over": {
			"UPDATE pglock.distributed_locks SET token = pglock.next_fencing_token(), holder = 'thief' WHERE name = $1",
			"SELECT holder = 'thief' FROM pglock.distributed_locks WHERE name = $1",
		},
		"released by somebody": {
			"UPDATE pglock.distributed_locks SET holder = NULL, expires_at = '-infinity' WHERE name = $1",
			"SELECT holder IS NULL AND expires_at = '-infinity' FROM pglock.distributed_locks WHERE name = $1",
		},
		"expired on the server": {
			"UPDATE pglock.distributed_locks SET expires_at = clock_timestamp() - interval '1 second' WHERE name = $1",
			"SELECT expires_at < clock_timestamp() FROM pglock.distributed_locks WHERE name = $1",
		},
		"deleted": {
			"DELETE FROM pglock.distributed_locks WHERE name = $1",
			"SELECT NOT EXISTS (SELECT FROM pglock.distributed_locks WHERE name = $1)",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := fixture{t, f.pool, f.schema}
			l := try(t, c, name, pglock.WithTTL(time.Minute), pglock.WithRenewEvery(100*time.Millisecond))
			f.sql(tc.spoil, name)
			ends(t, "the holder is told", l.Done())
			var lost *pglock.LostError
			if err := context.Cause(l.Context()); !errors.Is(err, pglock.ErrLost) || !errors.As(err, &lost) || lost.Token != l.Token() {
				t.Errorf("the cause is %v", err)
			}
			fails(t, "Release", l.Release(t.Context()), pglock.ErrLost)
			is(f, "renewal or release changed what it did not own", true, tc.stays, name)
		})
	}
}

// TestP12_AcquiresContextDoesNotEndTheLease, nor does the end of its wait. I8.
func TestP12_AcquiresContextDoesNotEndTheLease(t *testing.T) {
	t.Parallel()
	c := newFixture(t).open()
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
}

// TestP14_RenewalAnswerLost drops the answers to applied renewals.
func TestP14_RenewalAnswerLost(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	proxy, far := f.proxied()
	c := far.open()
	l := try(t, c, "n", pglock.WithTTL(20*time.Second), pglock.WithRenewEvery(200*time.Millisecond))
	version := func() int64 { return value[int64](f, "SELECT version FROM pglock.distributed_locks") }
	pgtest.Eventually(t, "a renewal", func() bool { return version() > 1 })
	applied := version()
	proxy.DropReplies() // the next renewal is the last: its connection stays silent, and no new one gets through
	pgtest.Eventually(t, "a renewal without an answer", func() bool { return version() > applied })
	proxy.Heal()
	proxy.Sever()
	answered := version()
	pgtest.Eventually(t, "a renewal after it", func() bool { return version() > answered+1 })
	check(t, l.Err())
	release(t, l)
}

// TestI11_ALockedRowDelaysNoOtherRenewal locks one row by hand.
func TestI11_ALockedRowDelaysNoOtherRenewal(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.open(pglock.WithTTL(time.Second))
	locked, other := try(t, c, "locked"), try(t, c, "other")
	tx := begin(t, f)
	run(t, tx, f.named("SELECT FROM pglock.distributed_locks WHERE name = 'locked' FOR UPDATE"))
	ends(t, "the locked one is lost in the end", locked.Done())
	if n := value[int64](f, "SELECT version FROM pglock.distributed_locks WHERE name = 'other'"); n < 2 || other.Err() != nil {
		t.Errorf("another lease, in the same renewals, was renewed %d times until then: %v", n-1, other.Err())
	}
	check(t, tx.Rollback(t.Context()))
	release(t, other)
}

func TestExtend(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
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
	f.sql("UPDATE pglock.distributed_locks SET token = pglock.next_fencing_token(), holder = 'thief'")
	if err := lost.Extend(t.Context(), time.Minute); !errors.Is(err, pglock.ErrLost) || lost.Err() == nil {
		t.Errorf("after a takeover: %v, then %v", err, lost.Err())
	}
}

// TestRenewalNeverShortens: renewals go on after Extend.
func TestRenewalNeverShortens(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.open()
	l := try(t, c, "n", pglock.WithTTL(5*time.Second), pglock.WithRenewEvery(50*time.Millisecond))
	must(t, l.Extend(t.Context(), time.Minute))
	version := value[int64](f, "SELECT version FROM pglock.distributed_locks")
	pgtest.Eventually(t, "renewals", func() bool {
		return value[int64](f, "SELECT version FROM pglock.distributed_locks") > version+2
	})
	if left := value[float64](f, "SELECT extract(epoch FROM expires_at - clock_timestamp()) FROM pglock.distributed_locks"); left < 50 {
		t.Errorf("%v s are left of the minute that was ensured", left)
	}
	if left := time.Until(l.Deadline()); left < 50*time.Second {
		t.Errorf("locally, %v is left of the minute", left)
	}
	release(t, l)
}

// TestRenewalsThatGatherFollowAtOnce: more leases are due than fit into the statements in flight.
// The others are renewed as soon as one of these is answered.
func TestRenewalsThatGatherFollowAtOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.open(pglock.WithBatches(2, false), pglock.WithTTL(4*time.Second), pglock.WithRenewEvery(2500*time.Millisecond))
	all := many(t, c, 20)
	rest(t, 6*time.Second)
	for _, l := range all {
		check(t, l.Err())
		release(t, l)
	}
}

// TestShortLeasesDoNotWakeTheRenewer: leases that end long before they are due leave the plan of the
// renewer's loop as it is. It need not be woken for each of them.
func TestShortLeasesDoNotWakeTheRenewer(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.open()
	release(t, try(t, c, "n"))
	first := pglock.NextLook(c)
	if until := time.Until(first); until > 30*time.Second {
		t.Errorf("the first lease is looked at after %v", until)
	}
	for range 20 {
		release(t, try(t, c, "n"))
		if next := pglock.NextLook(c); next.After(first) {
			t.Fatalf("the next look was at %v, and is put off by %v", first, next.Sub(first))
		}
	}
}
