package conformance

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/pgtest"
)

// testTryOnAHeldLock checks that a try does not wait, and acquires the lock when it is free.
func testTryOnAHeldLock(t *testing.T, open func() Locker) {
	ours, theirs := open(), open()
	unlock := lock(t, ours)
	for what, l := range map[string]Locker{"the same process": ours, "another process": theirs} {
		begun := time.Now()
		_, err := l.TryLock(t.Context(), "n")
		if !errors.Is(err, errs.ErrNotAcquired) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", what, err)
		}
		if took := time.Since(begun); took > 10*time.Second {
			t.Errorf("%s: it took %v", what, took)
		}
	}
	release(t, unlock)
	unlock, err := theirs.TryLock(t.Context(), "n")
	if err != nil {
		t.Fatalf("once it is free: %v", err)
	}
	release(t, unlock)
}

// testNamesAreDistinct holds many locks at once.
func testNamesAreDistinct(t *testing.T, open func() Locker) {
	one, other := open(), open()
	names := []string{"a", "b", "A", "a ", "ab", "ünïcödé", "it's", `"`, "%s", "a@1"}
	var unlocks []Unlock
	for _, name := range names {
		unlock, err := one.TryLock(t.Context(), name)
		if err != nil {
			t.Fatalf("%q: %v", name, err)
		}
		unlocks = append(unlocks, unlock)
	}
	for i, name := range names {
		if _, err := other.TryLock(t.Context(), name); !errors.Is(err, errs.ErrNotAcquired) {
			t.Errorf("%q: %v", name, err)
		}
		release(t, unlocks[i])
		unlock, err := other.TryLock(t.Context(), name)
		if err != nil {
			t.Fatalf("%q, once it is free: %v", name, err)
		}
		release(t, unlock)
	}
}

// testWaitsEnd checks that a wait ends with its context, with an error that tells a timeout, a
// cancellation and a busy lock apart.
func testWaitsEnd(t *testing.T, open func() Locker) {
	holder, waiter := open(), open()
	unlock := lock(t, holder)
	why := errors.New("the caller's reason")
	cancelled, cancel := context.WithCancelCause(t.Context())
	time.AfterFunc(50*time.Millisecond, func() { cancel(why) })
	late, stop := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer stop()
	done, end := context.WithCancel(t.Context())
	end()
	for what, tc := range map[string]struct {
		ctx     context.Context
		is, not error
	}{
		"cancelled":           {cancelled, context.Canceled, context.DeadlineExceeded},
		"cancelled, why":      {cancelled, why, context.DeadlineExceeded},
		"deadline":            {late, context.DeadlineExceeded, context.Canceled},
		"done from the start": {done, context.Canceled, context.DeadlineExceeded},
	} {
		begun := time.Now()
		_, err := waiter.Lock(tc.ctx, "n")
		if !errors.Is(err, errs.ErrNotAcquired) || !errors.Is(err, tc.is) || errors.Is(err, tc.not) {
			t.Errorf("%s: %v", what, err)
		}
		if took := time.Since(begun); took > 10*time.Second {
			t.Errorf("%s: it took %v", what, took)
		}
	}
	release(t, unlock)
	release(t, lock(t, waiter))
}

// testCancelled cancels waiters at any moment, also during their grant. They must leave nothing: all
// others are served.
func testCancelled(t *testing.T, open func() Locker) {
	const waiters, rounds = 12, 6
	lockers := []Locker{open(), open()}
	var all sync.WaitGroup
	for i := range waiters {
		all.Go(func() {
			for round := range rounds {
				ctx, cancel := context.WithTimeout(t.Context(), pgtest.Patience)
				if i%2 == 0 {
					time.AfterFunc(time.Duration((i*rounds+round)%25)*time.Millisecond, cancel)
				}
				unlock, err := lockers[i%4/2].Lock(ctx, "n")
				switch {
				case err == nil:
					release(t, unlock)
				case i%2 != 0, !errors.Is(err, context.Canceled):
					t.Errorf("%v", err)
				}
				cancel()
			}
		})
	}
	all.Wait()
	release(t, lock(t, open()))
}
