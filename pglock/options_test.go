package pglock_test

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/pglock"
)

// TestNamePolicy: the policy's options come before those of the call, it can refuse a name, and several
// names have the shortest TTL and the labels of all.
func TestNamePolicy(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		unclaimed := errors.New("no team has claimed it")
		c := f.open(pglock.WithTTL(20*time.Second), pglock.WithNamePolicy(func(name string) ([]pglock.LeaseOption, error) {
			team, _, found := strings.Cut(name, ":")
			if !found {
				return nil, unclaimed
			}
			opts := []pglock.LeaseOption{pglock.WithLabels(map[string]string{"team " + team: "yes"})}
			switch team {
			case "short":
				opts = append(opts, pglock.WithTTL(10*time.Second))
			case "long":
				opts = append(opts, pglock.WithTTL(time.Minute))
			case "invalid":
				opts = append(opts, pglock.WithTTL(-1))
			}
			return opts, nil
		}))
		check := func(l *pglock.Lease, ttl time.Duration, labels ...string) {
			t.Helper()
			for _, name := range l.Names() {
				k, err := c.Get(t.Context(), name)
				if err != nil || k.Remaining > ttl || k.Remaining < ttl-5*time.Second {
					t.Errorf("%q: %v remain of %v, %v", name, k.Remaining, ttl, err)
				}
				if got := slices.Sorted(maps.Keys(k.Labels)); !slices.Equal(got, labels) {
					t.Errorf("%q: labels %q", name, got)
				}
			}
			release(t, l)
		}
		check(try(t, c, "a:1"), 20*time.Second, "team a")
		check(try(t, c, "short:1"), 10*time.Second, "team short")
		check(try(t, c, "short:1", pglock.WithTTL(40*time.Second), pglock.WithLabels(map[string]string{"run": "7"})), 40*time.Second, "run", "team short")
		all := held(t, locktest.All(c, "long:1", "short:1"))
		check(all, 10*time.Second, "team long", "team short")
		s := c.Semaphore("long:2", 2)
		if l := tried(t, s); time.Until(l.Deadline()) < 50*time.Second {
			t.Errorf("a semaphore's lease ends in %v", time.Until(l.Deadline()))
		}
		if _, err := c.Acquire(t.Context(), "nobody"); !errors.Is(err, unclaimed) || !strings.Contains(err.Error(), "nobody") {
			t.Errorf("a name that the policy refuses: %v", err)
		}
		fails(t, "several names, one of which the policy refuses", second(locktest.All(c, "a:1", "nobody").Acquire(t.Context())), unclaimed)
		fails(t, "Adopt", second(c.Adopt(t.Context(), fencing.Fence{Schema: c.Schema(), Name: "nobody", Token: 1})), unclaimed)
		fails(t, "an invalid option of the policy", second(c.Acquire(t.Context(), "invalid:1")), pglock.ErrInvalidOption)
		fails(t, "a refused name has a row", second(c.Get(t.Context(), "nobody")), pglock.ErrNotFound)
	})
}

// TestP22_OptionsAreNotSpent passes one set of options to many calls.
func TestP22_OptionsAreNotSpent(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		c := f.open()
		opts := []pglock.LeaseOption{pglock.WithTTL(time.Minute), pglock.WithHolder("h")}
		for range 3 {
			l := acquire(t, c, "n", opts...)
			if l.Holder() != "h" || time.Until(l.Deadline()) < 50*time.Second {
				t.Errorf("holder %q, deadline in %v", l.Holder(), time.Until(l.Deadline()))
			}
			release(t, l)
		}
	})
}
