package conformance

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/condition"
)

// testTryOnAHeldLock: a try does not wait, and gets the lock once it is free.
func testTryOnAHeldLock(t *testing.T, open func() Locker) {
	ours, theirs := open(), open()
	unlock := lock(t, ours, "n")
	for what, l := range map[string]Locker{"the same process": ours, "another process": theirs} {
		begun := time.Now()
		_, err := l.TryLock(t.Context(), "n")
		if !errors.Is(err, condition.ErrNotAcquired) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
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

// testNamesAreDistinct: many locks are held at once, and each is its own.
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
		if _, err := other.TryLock(t.Context(), name); !errors.Is(err, condition.ErrNotAcquired) {
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

// testWaitsEnd: a wait ends with its context, and the error tells how, apart from a lock that was busy.
func testWaitsEnd(t *testing.T, open func() Locker) {
	holder, waiter := open(), open()
	unlock := lock(t, holder, "n")
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
		if !errors.Is(err, condition.ErrNotAcquired) || !errors.Is(err, tc.is) || errors.Is(err, tc.not) {
			t.Errorf("%s: %v", what, err)
		}
		if took := time.Since(begun); took > 10*time.Second {
			t.Errorf("%s: it took %v", what, took)
		}
	}
	release(t, unlock)
	release(t, lock(t, waiter, "n"))
}

// testCancelled: waiters that leave at any moment, also in that of their grant, leave nothing behind: those who stay
// are all served.
func testCancelled(t *testing.T, open func() Locker) {
	const waiters, rounds = 12, 6
	lockers := []Locker{open(), open()}
	var all sync.WaitGroup
	for i := range waiters {
		all.Go(func() {
			for round := range rounds {
				ctx, cancel := context.WithTimeout(t.Context(), patience)
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
	unlock, err := open().Lock(t.Context(), "n")
	if err != nil {
		t.Fatalf("afterwards: %v", err)
	}
	release(t, unlock)
}
