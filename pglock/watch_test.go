package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/timing"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/inspect"
)

// watched is a running Watch.
type watched struct {
	t    *testing.T
	next func() (inspect.Lock, error, bool)
}

func watch(ctx context.Context, t *testing.T, c *pglock.Client, name string) watched {
	t.Helper()
	next, stop := iter.Pull2(c.Watch(ctx, name))
	t.Cleanup(stop)
	return watched{t, next}
}

// sees waits for the next state, which must be of that holder, or free with "".
func (w watched) sees(holder string) (after time.Duration) {
	w.t.Helper()
	began := time.Now()
	k, err, ok := w.next()
	switch {
	case err != nil || !ok:
		w.t.Fatalf("no state: %v", err)
	case holder == "" && k.Held() || holder != "" && (!k.Held() || k.Holder != holder):
		w.t.Errorf("the state is %+v, want holder %q", k, holder)
	}
	return time.Since(began)
}

// TestWatchNeverGoesBack: a state of the past, as from an old primary, is not returned after a newer
// one, until the lease of the newer one would have expired. It may be that of an older grant, or of the
// same one before its release.
func TestWatchNeverGoesBack(t *testing.T) {
	t.Parallel()
	for _, released := range []bool{false, true} {
		t.Run(fmt.Sprint("released ", released), func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			c := f.open(pglock.WithTTL(time.Hour))
			keep := func(table string) {
				f.sql("CREATE TABLE pglock." + table + " AS SELECT * FROM pglock.distributed_locks")
			}
			restore := func(table string) {
				f.sql("DELETE FROM pglock.distributed_locks; INSERT INTO pglock.distributed_locks SELECT * FROM pglock." + table)
			}
			first := try(t, c, "n", pglock.WithHolder("first"))
			w := watch(t.Context(), t, f.open(pglock.WithPollOnly()), "n")
			w.sees("first")
			keep("past")
			release(t, first)
			w.sees("")
			if !released {
				first = try(t, c, "n", pglock.WithHolder("second"))
				w.sees("second")
			}
			keep("present")
			restore("past")
			states := make(chan string, 1)
			go func() {
				k, err, _ := w.next()
				states <- fmt.Sprint(k.Held(), " ", k.Holder, " ", err)
			}()
			select {
			case got := <-states:
				t.Fatalf("after a newer state: %s", got)
			case <-time.After(3 * time.Second): // it polls every second
			}
			f.sql("UPDATE pglock.present SET token = token + 1, holder = 'third', expires_at = now() + interval '1 hour'")
			restore("present")
			select {
			case got := <-states:
				if got != "true third <nil>" {
					t.Errorf("the next state: %s", got)
				}
			case <-time.After(pgtest.Patience):
				t.Error("the next state was not seen")
			}
			_ = first.Release(t.Context()) // it was lost, or is released
			f.sql("DELETE FROM pglock.distributed_locks")
		})
	}
}

// TestWatchEnds with ctx, with the client and with the caller's loop, and leaves no row behind.
func TestWatchEnds(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.openUnclosed()
	why := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	w, other := watch(ctx, t, c, "n"), watch(t.Context(), t, c, "n")
	w.sees("")
	other.sees("")
	cancel(why)
	if _, err, _ := w.next(); !errors.Is(err, why) || !errors.Is(err, context.Canceled) {
		t.Errorf("after ctx: %v", err)
	}
	if _, _, ok := w.next(); ok {
		t.Error("it continues after an error")
	}
	for k, err := range c.Watch(t.Context(), "other") {
		if err != nil || k.Held() {
			t.Errorf("%+v, %v", k, err)
		}
		break
	}
	pgtest.Eventually(t, "the row of the last loop is deleted, the other one is not", func() bool {
		return value[string](f, "SELECT coalesce(string_agg(name, ' '), '') FROM pglock.lock_waiters") == "n"
	})
	ended := make(chan error, 1)
	go func() {
		_, err, _ := other.next()
		ended <- err
	}()
	for _, err := range c.Watch(t.Context(), "busy") { // Close does not wait for the loop
		check(t, err)
		check(t, c.Close(t.Context()))
		f.none("rows are left", "SELECT count(*) FROM pglock.lock_waiters")
		break
	}
	fails(t, "after Close", <-ended, pglock.ErrClosed)
	for _, err := range c.Watch(t.Context(), "") {
		fails(t, "without a name", err, pglock.ErrInvalidOption)
	}
}

// TestWatchSeesEachHolder, with notifications and without.
func TestWatchSeesEachHolder(t *testing.T) {
	t.Parallel()
	for _, polls := range []bool{false, true} {
		bubbles(t, fmt.Sprint("poll only ", polls), func(t *testing.T, f fake) {
			var options []pglock.Option
			if polls {
				options = append(options, pglock.WithPollOnly())
			}
			c, operator := f.open(pglock.WithTTL(time.Hour)), f.open(options...)
			w := watch(t.Context(), t, operator, "n")
			w.sees("") // there is no row
			l := try(t, c, "n", pglock.WithHolder("first"))
			w.sees("first")
			release(t, l)
			if late := w.sees(""); (late == 0) == polls {
				t.Errorf("a release was seen after %v", late)
			}
			l = try(t, c, "n", pglock.WithHolder("second"))
			w.sees("second")
			// Two changes during the caller's loop: only the newest state counts.
			release(t, l)
			l = try(t, c, "n", pglock.WithHolder("third"))
			w.sees("third")
			must(t, operator.Revoke(t.Context(), "n", l.Token(), "r"))
			w.sees("")
			_ = l.Release(t.Context()) // it was lost
			dying := try(t, c, "n", pglock.WithHolder("dying"), pglock.WithTTL(3*time.Second), pglock.WithRenewEvery(0))
			w.sees("dying")
			if late := w.sees(""); late > 3*time.Second+timing.MaxPause {
				t.Errorf("an expiry was seen after %v", late)
			}
			_ = dying.Release(t.Context()) // it was lost
		})
	}
}

// TestANotificationIsFaster than polling, also that of the release of a batch.
func TestANotificationIsFaster(t *testing.T) {
	t.Parallel()
	for _, forced := range []bool{false, true} {
		bubbles(t, fmt.Sprint("batches ", forced), func(t *testing.T, f fake) {
			c, operator := f.open(pglock.WithBatches(8, forced)), f.open()
			w := watch(t.Context(), t, operator, "n")
			w.sees("")
			for i := range 20 {
				holder := fmt.Sprint("holder ", i)
				l := try(t, c, "n", pglock.WithHolder(holder))
				w.sees(holder)
				release(t, l)
				if late := w.sees(""); late > 0 {
					t.Errorf("release %d was seen after %v", i, late)
				}
			}
		})
	}
}

// TestAWatchDelaysNobody: a watched lock is granted in one attempt, also to the client that watches,
// and its waiters keep their order.
func TestAWatchDelaysNobody(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		c := f.open()
		w := watch(t.Context(), t, c, "n")
		w.sees("")
		for range 3 {
			l := try(t, c, "n")
			got := f.waits(f.open().Lock("n"))
			release(t, l)
			release(t, next(t, got))
		}
	})
}
