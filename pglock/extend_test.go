package pglock_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
)

// TestExtendOfManyNames: all of them are trusted for the time that was asked for, also if each answer
// takes a while.
func TestExtendOfManyNames(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		const d = time.Hour
		proxy, far := f.proxied()
		c := far.open(pglock.WithTTL(time.Minute))
		var names []string
		for i := range 30 {
			names = append(names, fmt.Sprintf("name %02d", i))
		}
		l := held(t, locktest.All(c, names...))
		proxy.Delay(100 * time.Millisecond) // one statement for each name would take 6 s
		must(t, l.Extend(t.Context(), d))
		if trusted := time.Until(l.Deadline()); trusted < d-3*time.Second {
			t.Errorf("trusted for %v, asked for %v", trusted, d)
		}
		proxy.Delay(0)
		release(t, l)
	})
}

// TestExtendOnASlowServer: the round trip is longer than any fixed allowance for it.
func TestExtendOnASlowServer(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		proxy, far := f.proxied()
		c := far.open()
		l := try(t, c, "n", pglock.WithTTL(10*time.Second), pglock.WithRenewEvery(0))
		proxy.Delay(2 * time.Second)
		ctx := bounded(t, pgtest.Patience)
		before := proxy.count()
		if err := l.Extend(ctx, 20*time.Second); err != nil {
			t.Errorf("Extend, with a round trip of 2 s: %v", err)
		} else if left := time.Until(l.Deadline()); left < 19*time.Second {
			t.Errorf("trusted for %v only", left)
		}
		if n := proxy.count() - before; n > 2 {
			t.Errorf("Extend took %d renewals", n)
		}
		proxy.Delay(0)
		release(t, l)
	})
}

// TestExtendKeepsAShortLeaseShort: the server keeps the lock little longer than requested.
func TestExtendKeepsAShortLeaseShort(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		c := f.open()
		release(t, try(t, c, "n"))
		const ttl, margin = 2 * time.Second, 200 * time.Millisecond
		l := try(t, c, "n", pglock.WithTTL(ttl), pglock.WithSafetyMargin(margin), pglock.WithRenewEvery(0))
		rest(t, 300*time.Millisecond)
		must(t, l.Extend(t.Context(), 1700*time.Millisecond))
		if left := time.Until(f.expiry("n")); left > ttl+500*time.Millisecond {
			t.Errorf("TTL %v, Extend(1.7s): the server keeps the lock for %v", ttl, left)
		}
		release(t, l)
	})
}
