package pglock_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
)

// TestDefaultLogger: without WithLogger, a client tells slog.Default, as it is at the time, about
// failed renewals, lost leases and failed clean-ups. With a nil logger it tells nobody. The test is
// not parallel, since slog.Default is the process's.
func TestDefaultLogger(t *testing.T) { //nolint:paralleltest // slog.Default
	before := slog.Default()
	defer slog.SetDefault(before)
	for name, tc := range map[string]struct {
		opts []pglock.Option
		want []string
	}{
		"default": {nil, []string{"level=WARN msg=\"pglock: renewal failed", "level=WARN msg=\"pglock: lease lost\" name=n", "could not prune"}},
		"nil":     {[]pglock.Option{pglock.WithLogger(nil)}, nil},
	} {
		t.Run(name, func(t *testing.T) { //nolint:paralleltest // slog.Default
			f := newFixture(t)
			proxy, far := f.proxied()
			c := far.open(append(tc.opts, pglock.WithPruneEvery(50*time.Millisecond, time.Hour))...)
			var log logBuffer // set after Open
			slog.SetDefault(slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})))
			f.sql("DROP FUNCTION pglock.raise_pruned(bigint)") // fails a clean-up
			if tc.want == nil {
				rest(t, 200*time.Millisecond)
			} else {
				pgtest.Eventually(t, "a failed clean-up is logged", func() bool { return strings.Contains(log.String(), "could not prune") })
			}
			l := try(t, c, "n", pglock.WithTTL(time.Second))
			proxy.Refuse(true)
			proxy.Sever()
			ends(t, "the loss", l.Done())
			fails(t, "the lease ended", l.Err(), pglock.ErrLost)
			proxy.Refuse(false)
			for _, want := range tc.want {
				pgtest.Eventually(t, want, func() bool { return strings.Contains(log.String(), want) })
			}
			if tc.want == nil && log.String() != "" {
				t.Errorf("logged %s", log.String())
			}
		})
	}
}

// line is one line of the log.
type line map[string]any

// lines returns the lines of the log with that message.
func (b *logBuffer) lines(t *testing.T, message string) (found []line) {
	t.Helper()
	for text := range bytes.Lines([]byte(b.String())) {
		var l line
		if err := json.Unmarshal(text, &l); err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		if l["msg"] == message {
			found = append(found, l)
		}
	}
	return found
}

// has reports whether the line has these keys, besides time, level and message, and no others.
func (l line) has(keys ...string) bool {
	want := append([]string{"level", "msg", "time"}, keys...)
	var got []string
	for k := range l {
		got = append(got, k)
	}
	slices.Sort(want)
	slices.Sort(got)
	return slices.Equal(got, want)
}

// TestDebugLogTellsOfGrantsWaitsAndReleases, one line each. At Info it tells of losses only.
func TestDebugLogTellsOfGrantsWaitsAndReleases(t *testing.T) {
	t.Parallel()
	for _, level := range []slog.Level{slog.LevelDebug, slog.LevelInfo} {
		bubbles(t, level.String(), func(t *testing.T, f fake) {
			n := "lock-" + level.String()
			var logged logBuffer
			c := f.openUnclosed(pglock.WithHolder("me"),
				pglock.WithLogger(slog.New(slog.NewJSONHandler(&logged, &slog.HandlerOptions{Level: level}))))
			other := f.open(pglock.WithHolder("another"))
			held := acquire(t, other, n)
			if _, err := c.TryAcquire(t.Context(), n); err == nil {
				t.Error("granted twice")
			}
			got := f.waits(c.Lock(n))
			release(t, held)
			l := next(t, got)
			release(t, l)
			lost := acquire(t, c, n, pglock.WithTTL(time.Second), pglock.WithRenewEvery(0))
			ends(t, "the loss", lost.Done())
			synctest.Wait() // for the log
			check(t, c.Close(context.Background()))

			want := []struct {
				message string
				count   int // at Debug
				keys    []string
				facts   line // of the first line
			}{
				{"pglock: lock not acquired", 1, []string{"name", "outcome", "waited", "attempts", "error"}, line{"name": n, "outcome": "busy"}},
				{"pglock: waiting for a lock", 1, []string{"name", "holder", "token", "remaining", "ahead"}, line{"name": n, "holder": "another", "token": held.Token(), "ahead": 0}},
				{"pglock: lock acquired", 2, []string{"name", "token", "holder", "waited", "attempts", "handed_off"}, line{"name": n, "holder": "me", "token": l.Token(), "handed_off": false}},
				{"pglock: lock released", 1, []string{"name", "token", "holder", "held", "handed_off"}, line{"name": n, "holder": "me", "token": l.Token(), "handed_off": false}},
				{"pglock: lease lost", 1, []string{"name", "token", "reason", "held"}, line{"level": "WARN", "name": n, "token": lost.Token()}},
			}
			total := 0
			for _, w := range want {
				count := w.count
				if level > slog.LevelDebug && w.facts["level"] == nil {
					count = 0
				}
				total += count
				found := logged.lines(t, w.message)
				if len(found) != count {
					t.Errorf("%d lines %q, want %d", len(found), w.message, count)
					continue
				}
				if count == 0 {
					continue
				}
				if !found[0].has(w.keys...) {
					t.Errorf("%v does not have the keys %v", found[0], w.keys)
				}
				for k, v := range w.facts {
					if fmt.Sprint(found[0][k]) != fmt.Sprint(v) {
						t.Errorf("%s: %s is %v, want %v", w.message, k, found[0][k], v)
					}
				}
			}
			if n := strings.Count(logged.String(), "\n"); n != total {
				t.Errorf("%d lines, want %d:\n%s", n, total, logged.String())
			}
		})
	}
}

// TestNoWarningOfARenewalThatWasCutOff: the renewal in progress ends with the client, or with the context of
// Extend, so it did not fail, and is not tried again.
func TestNoWarningOfARenewalThatWasCutOff(t *testing.T) {
	t.Parallel()
	for what, cut := range map[string]func(t *testing.T, c *pglock.Client, l *pglock.Lease) error{
		"by Close": func(t *testing.T, c *pglock.Client, l *pglock.Lease) error {
			t.Helper()
			ended, end := context.WithCancel(t.Context())
			released := make(chan error, 1)
			go func() { released <- l.Release(ended) }()
			ends(t, "the lease", l.Done())
			end()
			t.Log("cut off:", <-released)
			return c.Close(bounded(t, 100*time.Millisecond))
		},
		"by its caller": func(t *testing.T, _ *pglock.Client, l *pglock.Lease) error {
			t.Helper()
			ctx, leave := context.WithCancel(t.Context())
			time.AfterFunc(100*time.Millisecond, leave)
			return l.Extend(ctx, time.Hour)
		},
	} {
		bubbles(t, what, func(t *testing.T, f fake) {
			proxy, far := f.proxied()
			log := &logBuffer{}
			c := far.openUnclosed(pglock.WithTTL(time.Minute), pglock.WithRenewEvery(time.Second), log.option())
			l := try(t, c, "n")
			granted := f.expiry("n")
			proxy.HoldReplies()
			rest(t, 3*time.Second/2)
			if !f.expiry("n").After(granted) {
				t.Error("control: no renewal is in progress")
			}
			if err := cut(t, c, l); err == nil {
				t.Error("the call had an answer")
			}
			_ = c.Close(bounded(t, 100*time.Millisecond))
			if strings.Contains(log.String(), "renewal failed") {
				t.Error(log.String())
			}
			proxy.Heal()
		})
	}
}
