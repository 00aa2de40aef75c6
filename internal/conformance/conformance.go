// Package conformance holds what every kind of lock must do, as one suite of tests that runs against each.
package conformance

import (
	"context"
	"testing"
	"time"
)

// Locker is a kind of lock as one process has it. It is used by many goroutines at once.
type Locker interface {
	// Lock waits for the lock of that name until ctx is done.
	Lock(ctx context.Context, name string) (Unlock, error)
	// TryLock asks once.
	TryLock(ctx context.Context, name string) (Unlock, error)
}

// Unlock gives a lock back.
type Unlock func(ctx context.Context) error

// Kind makes lockers of one kind for a test, each as another process would have it. They share their locks,
// and end with the test.
type Kind func(t *testing.T) (open func() Locker)

// patience is how long a test waits for what must come.
const patience = time.Minute

// Run runs the suite on one kind of lock.
func Run(t *testing.T, kind Kind) {
	t.Helper()
	for name, test := range map[string]func(t *testing.T, open func() Locker){
		"I1_P42_Exclusion":   testExclusion,
		"TryOnAHeldLock":     testTryOnAHeldLock,
		"NamesAreDistinct":   testNamesAreDistinct,
		"P23_WaitsEnd":       testWaitsEnd,
		"I9_CancelledInTime": testCancelled,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, kind(t))
		})
	}
}

// lock is Lock, or the end of the test.
func lock(t *testing.T, l Locker, name string) Unlock {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	unlock, err := l.Lock(ctx, name)
	if err != nil {
		t.Fatalf("Lock: %v", err)
	}
	return unlock
}

func release(t *testing.T, unlock Unlock) {
	t.Helper()
	if err := unlock(t.Context()); err != nil {
		t.Errorf("unlock: %v", err)
	}
}
