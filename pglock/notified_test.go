package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/internal/backend"
)

// deaf is a store that opens no listening connection while it refuses them.
type deaf struct {
	backend.Store
	refuses *atomic.Bool
}

func (s deaf) Listen(ctx context.Context, shared string, channels ...string) (backend.Listener, error) {
	if s.refuses.Load() {
		return nil, refusedError{}
	}
	return s.Store.Listen(ctx, shared, channels...)
}

// TestI10_P65_ARequestWhileTheListenerOpens: the holder learns of a request and of a revocation that
// notified nobody, because its client opened the listening connection at that moment, for the first
// time or again. No renewal can tell it.
func TestI10_P65_ARequestWhileTheListenerOpens(t *testing.T) {
	t.Parallel()
	for _, again := range []bool{false, true} {
		bubbles(t, fmt.Sprint("again ", again), func(t *testing.T, f fake) {
			var refuses atomic.Bool
			c := f.through(func(s backend.Store) backend.Store { return deaf{s, &refuses} }).open(pglock.WithTTL(time.Hour), pglock.WithRenewEvery(0))
			asked, revoked, other := try(t, c, "asked"), try(t, c, "revoked"), try(t, c, "other")
			if again {
				asked.ReleaseRequested() // opens the listener
				synctest.Wait()
			}
			refuses.Store(true)
			f.Crash() // ends it
			asked.ReleaseRequested()
			synctest.Wait()
			if pglock.Listening(c) {
				t.Error("control: it listens")
			}
			operator := f.open()
			must(t, operator.RequestRelease(t.Context(), "asked", asked.Token(), "deploy"))
			must(t, operator.Revoke(t.Context(), "revoked", revoked.Token(), "maintenance"))
			refuses.Store(false)
			rest(t, time.Minute)
			if err := revoked.Err(); !errors.Is(err, pglock.ErrRevoked) || asked.ReleaseReason() != "deploy" || other.Err() != nil {
				t.Errorf("revoked: %v; asked: %q; other: %v", err, asked.ReleaseReason(), other.Err())
			}
			release(t, asked)
			release(t, other)
		})
	}
}

// TestI10_P65_ARequestBeforeTheGrantIsKnown: others read a token before its holder has the answer.
func TestI10_P65_ARequestBeforeTheGrantIsKnown(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		proxy, far := f.proxied()
		c := far.open(pglock.WithTTL(time.Hour), pglock.WithRenewEvery(0))
		release(t, try(t, c, "n"))
		first := try(t, c, "first")
		first.ReleaseRequested()
		synctest.Wait()
		proxy.HoldReplies()
		got := f.waits(c.Lock("n"))
		must(t, f.open().RequestRelease(t.Context(), "n", f.row("n").Token, "deploy"))
		synctest.Wait()
		if pglock.Unclaimed(c) == 0 {
			t.Error("control: no notification without a lease")
		}
		proxy.Heal()
		l := next(t, got)
		ends(t, "the request", l.ReleaseRequested())
		release(t, l)
		release(t, first)
	})
}

// TestI10_P65_ARequestBeforeTheGrantIsAdopted reaches the adopter, which does not renew.
func TestI10_P65_ARequestBeforeTheGrantIsAdopted(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		before, operator := f.open(pglock.WithTTL(time.Hour)), f.open()
		fence, err := try(t, before, "n").HandOver()
		must(t, err)
		must(t, operator.RequestRelease(t.Context(), "n", fence.Token, "deploy"))
		l, err := f.open(pglock.WithPollOnly()).Adopt(t.Context(), fence, pglock.WithTTL(time.Hour), pglock.WithRenewEvery(0))
		must(t, err)
		ends(t, "the request", l.ReleaseRequested())
		if reason := l.ReleaseReason(); reason != "deploy" {
			t.Errorf("the reason is %q", reason)
		}
		release(t, l)
	})
}

// TestI10_P65_RequestsWhileListenersOpen: in none of many rounds is a request missed that races with
// the opening of the listening connection.
func TestI10_P65_RequestsWhileListenersOpen(t *testing.T) {
	t.Parallel()
	const rounds = 10 // TestI10_P65_ARequestWhileTheListenerOpens has the exact moment
	f := newFixture(t)
	operator := f.open()
	for range rounds {
		c := f.open(pglock.WithTTL(time.Hour), pglock.WithRenewEvery(0))
		l := try(t, c, "n")
		requested := l.ReleaseRequested() // it opens the listener
		must(t, operator.RequestRelease(t.Context(), "n", l.Token(), "deploy"))
		ends(t, "the request", requested)
		release(t, l)
		must(t, c.Close(t.Context()))
	}
}

// TestARevocationBeforeTheLastOne: a holder that missed its notification learns that its grant is
// gone, although the row knows of the revocation of a later grant only.
func TestARevocationBeforeTheLastOne(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		var refuses atomic.Bool
		c := f.through(func(s backend.Store) backend.Store { return deaf{s, &refuses} }).open(pglock.WithTTL(time.Hour), pglock.WithRenewEvery(0))
		first, other := try(t, c, "n"), try(t, c, "other")
		refuses.Store(true)
		other.ReleaseRequested()
		operator := f.open()
		must(t, operator.Revoke(t.Context(), "n", first.Token(), "maintenance"))
		second := try(t, operator, "n")
		must(t, operator.Revoke(t.Context(), "n", second.Token(), "maintenance"))
		refuses.Store(false)
		rest(t, time.Minute)
		if err := first.Err(); !errors.Is(err, pglock.ErrLost) || other.Err() != nil {
			t.Errorf("revoked: %v; other: %v", err, other.Err())
		}
		release(t, other)
	})
}
