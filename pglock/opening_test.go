package pglock_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/faultproxy"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/inspect"
)

// TestI10_P65_ARequestWhileTheListenerOpens: the holder learns of a request and of a revocation that
// notified nobody, because its client opened the listening connection at that moment, for the first
// time or again. No renewal can tell it.
func TestI10_P65_ARequestWhileTheListenerOpens(t *testing.T) {
	t.Parallel()
	for _, again := range []bool{false, true} {
		t.Run(fmt.Sprint("again ", again), func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			proxy := faultproxy.New(t, address(f.pool.Config().ConnConfig))
			c := f.open(pglock.WithListener(proxy.URL(pgtest.URL(t))), pglock.WithTTL(time.Hour), pglock.WithRenewEvery(0))
			asked, revoked, other := try(t, c, "asked"), try(t, c, "revoked"), try(t, c, "other")
			requested := asked.ReleaseRequested // the first call opens the listener
			if again {
				requested()
				pgtest.Eventually(t, "it listens", func() bool { return pglock.Listening(c) })
				proxy.Refuse(true)
				proxy.Sever()
				pgtest.Eventually(t, "it does not listen", func() bool { return !pglock.Listening(c) })
			} else {
				proxy.Refuse(true)
				requested()
			}
			operator := f.open()
			must(t, operator.RequestRelease(t.Context(), "asked", asked.Token(), "deploy"))
			must(t, operator.Revoke(t.Context(), "revoked", revoked.Token(), "maintenance"))
			proxy.Refuse(false)
			ends(t, "the request", requested())
			ends(t, "the revocation", revoked.Done())
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
	t.Parallel()
	f := newFixture(t)
	proxy := faultproxy.New(t, address(f.pool.Config().ConnConfig))
	pool := pgtest.PoolOn(t, proxy.URL(pgtest.URL(t)), func(config *pgxpool.Config) {
		config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec // without replies, a statement would never be prepared
	})
	c := fixture{t, pool, f.schema}.open(pglock.WithListener(pgtest.URL(t)), pglock.WithTTL(time.Hour), pglock.WithRenewEvery(0))
	t.Cleanup(proxy.Heal) // or Close would wait behind it
	release(t, try(t, c, "n"))
	first := try(t, c, "first")
	first.ReleaseRequested()
	pgtest.Eventually(t, "it listens", func() bool { return pglock.Listening(c) })

	operator := f.open() // before, since an attempt without an answer is given up after 5 s
	proxy.HoldReplies()
	got := async(t, c.Lock("n"))
	var held inspect.Lock
	pgtest.Eventually(t, "the server has granted the lock", func() (ok bool) {
		var err error
		held, err = operator.Get(t.Context(), "n")
		return err == nil && held.Held()
	})
	must(t, operator.RequestRelease(t.Context(), "n", held.Token, "deploy"))
	pgtest.Eventually(t, "the notification", func() bool { return pglock.Unclaimed(c) > 0 })
	proxy.Heal()
	l := next(t, got)
	ends(t, "the request", l.ReleaseRequested())
	release(t, l)
	release(t, first)
}

// TestI10_P65_ARequestBeforeTheGrantIsAdopted reaches the adopter, which does not renew.
func TestI10_P65_ARequestBeforeTheGrantIsAdopted(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
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
}

// TestI10_P65_RequestsWhileListenersOpen: in none of many rounds is a request missed that races with
// the opening of the listening connection.
func TestI10_P65_RequestsWhileListenersOpen(t *testing.T) {
	t.Parallel()
	const rounds = 60
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
