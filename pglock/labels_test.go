package pglock_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
)

// TestLabelsOfTheSameSizeForAll: labels that a call may acquire with can be set again, however many they are.
// One byte more is too large for both.
func TestLabelsOfTheSameSizeForAll(t *testing.T) {
	t.Parallel()
	c := newFixture(t).open()
	labels, size := map[string]string{}, len("{}")-1
	for i := 0; size < 15<<10; i++ {
		key := fmt.Sprintf("key %04d", i)
		labels[key] = "value"
		size += len(`"` + key + `":"value",`)
	}
	labels["last"] = strings.Repeat("x", 16<<10-size-len(`"last":"",`)+1-len("}"))
	l := try(t, c, "n", pglock.WithLabels(labels))
	check(t, l.SetLabels(t.Context(), map[string]string{"last": labels["last"]}))
	check(t, l.SetLabels(t.Context(), nil))
	labels["last"] += "x"
	fails(t, "SetLabels", l.SetLabels(t.Context(), map[string]string{"last": labels["last"]}), pglock.ErrInvalidOption)
	fails(t, "Acquire", second(c.TryAcquire(t.Context(), "m", pglock.WithLabels(labels))), pglock.ErrInvalidOption)
	release(t, l)
}

// TestSetLabels: labels are added and replaced, those who watch see them at once, and only the current
// grant can change them.
func TestSetLabels(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c, operator := f.open(), f.open()
	w := f.watch(t.Context(), operator, "n")
	w.sees("")
	pgtest.Eventually(t, "it listens", func() bool { return pglock.Listening(operator) })
	l := try(t, c, "n", pglock.WithHolder("h"), pglock.WithLabels(map[string]string{"a": "1", "b": "0"}), pglock.WithLabels(map[string]string{"b": "1"}))
	w.sees("h")
	var late time.Duration
	const n = 20
	for i := range n {
		must(t, l.SetLabels(t.Context(), map[string]string{"b": fmt.Sprint(i), "c": "3"}))
		began := time.Now()
		w.sees("h")
		late += time.Since(began)
	}
	if late/n > 300*time.Millisecond { // 500 ms by polling
		t.Errorf("labels are seen after %v", late/n)
	}
	k, err := c.Get(t.Context(), "n")
	if err != nil || len(k.Labels) != 3 || k.Labels["a"] != "1" || k.Labels["b"] != fmt.Sprint(n-1) || k.Token != l.Token() {
		t.Errorf("%+v, %v", k, err)
	}
	big := map[string]string{"big": strings.Repeat("x", 10_000)}
	check(t, l.SetLabels(t.Context(), big))
	big["more"], big["big"] = big["big"], "y"
	delete(big, "big")
	for what, labels := range map[string]map[string]string{"together": big, "NUL": {"a": "\x00"}, "UTF-8": {"\xff": ""}} {
		fails(t, what, l.SetLabels(t.Context(), labels), pglock.ErrInvalidOption)
	}
	f.sql("UPDATE pglock.distributed_locks SET token = token + 1000")
	fails(t, "a stale grant", l.SetLabels(t.Context(), nil), fencing.ErrStale)
	_ = l.Release(t.Context()) // its grant is gone
	if err := l.SetLabels(t.Context(), nil); err == nil {
		t.Error("an ended lease: no error")
	}
}

// TestNamePolicy: the policy's options come before those of the call, it can refuse a name, and several
// names have the shortest TTL and the labels of all.
func TestNamePolicy(t *testing.T) {
	t.Parallel()
	unclaimed := errors.New("no team has claimed it")
	f := newFixture(t)
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
	fails(t, "Adopt", second(c.Adopt(t.Context(), fencing.Fence{Schema: f.schema, Name: "nobody", Token: 1})), unclaimed)
	fails(t, "an invalid option of the policy", second(c.Acquire(t.Context(), "invalid:1")), pglock.ErrInvalidOption)
	fails(t, "a refused name has a row", second(c.Get(t.Context(), "nobody")), pglock.ErrNotFound)
}
