package pglocktest_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/once"
	"github.com/pglock/pglock-go/pglock/pglocktest"
)

// effects are the outcomes of a function of once.Do, or of a lookup.
var effects = map[string]func() (string, error){
	"succeeds":    func() (string, error) { return "result", nil },
	"fails":       func() (string, error) { return "", once.Failed(errors.New("no money")) },
	"is not done": func() (string, error) { return "", once.NotDone(errors.New("refused")) },
	"is unknown":  func() (string, error) { return "", errors.New("timeout") },
	"is too large": func() (string, error) {
		return strings.Repeat("x", once.MaxResult+1), nil
	},
}

// onceCall calls once.Do as chosen by r, and returns what came of it.
func onceCall(ctx context.Context, client *pglock.Client, r *rand.Rand) (call, outcome string) {
	names := []string{"succeeds", "fails", "is not done", "is unknown", "is too large"}
	key, fingerprint, effect, lookup := fmt.Sprint("key ", r.IntN(2)), []byte{byte(r.IntN(5) / 4)}, names[r.IntN(5)], names[r.IntN(5)]
	var opts []once.DoOption
	rule := []string{"", "retried", "looked up: " + lookup}[r.IntN(3)]
	looked, ran := 0, 0
	switch {
	case rule == "retried":
		opts = append(opts, once.WithRetry())
	case rule != "":
		opts = append(opts, once.WithLookup(func(context.Context, *pglock.Lease, once.Started) (string, error) {
			looked++
			return effects[lookup]()
		}))
	}
	got, err := once.Do(ctx, client, key, fingerprint, func(context.Context, *pglock.Lease) (string, error) {
		ran++
		return effects[effect]()
	}, opts...)
	var kinds []error
	for _, kind := range []error{once.ErrMismatch, once.ErrNoResult, once.ErrFailed, once.ErrOutcomeUnknown, once.ErrNotRecorded, once.ErrInProgress, once.ErrResultTooLarge} {
		if errors.Is(err, kind) {
			kinds = append(kinds, kind)
		}
	}
	return fmt.Sprintf("%s %d %s, %s", key, fingerprint, effect, rule),
		fmt.Sprintf("%.10s, ran %d, looked %d, failed %t: %q", got, ran, looked, err != nil, kinds)
}

// TestOnceIsTheSame on a fake and on a server, for random calls.
func TestOnceIsTheSame(t *testing.T) {
	t.Parallel()
	fake, server := places["fake"](t), places["server"](t)
	seed := uint64(time.Now().UnixNano())
	seen := map[string]bool{}
	for n := range uint64(150) {
		a, b := rand.New(rand.NewPCG(seed, n)), rand.New(rand.NewPCG(seed, n))
		if a.IntN(15) == 0 {
			fake.Advance(25 * time.Hour)
			server.Advance(25 * time.Hour)
			continue
		}
		b.IntN(15)
		call, got := onceCall(t.Context(), fake.Client, a)
		_, want := onceCall(t.Context(), server.Client, b)
		if got != want {
			t.Fatalf("seed %d, step %d: %s: fake %s, server %s", seed, n, call, got, want)
		}
		seen[want] = true
	}
	if len(seen) < 8 {
		t.Errorf("only %d different outcomes: %v", len(seen), seen)
	}
}

// TestOnceWithoutServer, from the effect on: it is not known whether it happened.
func TestOnceWithoutServer(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, k *pglocktest.Locks) {
		t.Helper()
		var restore func()
		_, err := once.Do(t.Context(), k.Client, "key", nil, func(context.Context, *pglock.Lease) (string, error) {
			restore = k.Unavailable()
			return "paid", nil
		})
		restore()
		if !errors.Is(err, once.ErrOutcomeUnknown) || !errors.Is(err, once.ErrNotRecorded) {
			t.Errorf("%v", err)
		}
		k.Expire(once.LockName("key"))
		if _, err := once.Do(t.Context(), k.Client, "key", nil, func(context.Context, *pglock.Lease) (string, error) { return "paid", nil }); !errors.Is(err, once.ErrOutcomeUnknown) {
			t.Errorf("the next call: %v", err)
		}
	})
}

// TestOnceOfALateProcess: its grant has expired before it begins, so it does not run.
func TestOnceOfALateProcess(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, k *pglocktest.Locks) {
		t.Helper()
		k.Crash("key", nil)
		_, err := once.Do(t.Context(), k.Client, "key", nil, func(context.Context, *pglock.Lease) (string, error) {
			t.Error("it runs")
			return "", nil
		}, once.WithLookup(func(_ context.Context, l *pglock.Lease, _ once.Started) (string, error) {
			k.Pause(l)
			return "", once.NotDone(errors.New("not found"))
		}))
		if err == nil || errors.Is(err, once.ErrOutcomeUnknown) {
			t.Errorf("%v", err)
		}
	})
}

// TestOnceOvertaken: a paused process returns the answer of the one that repeated its effect.
func TestOnceOvertaken(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, k *pglocktest.Locks) {
		t.Helper()
		other := k.Open(calm)
		got, err := once.Do(t.Context(), k.Client, "key", nil, func(_ context.Context, l *pglock.Lease) (string, error) {
			k.Pause(l)
			_, err := once.Do(t.Context(), other, "key", nil, func(context.Context, *pglock.Lease) (string, error) { return "second", nil }, once.WithRetry())
			locktest.OK(t, err)
			return "first", nil
		})
		if got != "second" {
			t.Errorf("%q, %v", got, err)
		}
	})
}
