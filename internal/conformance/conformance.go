// Package conformance is the test suite that every kind of lock must pass.
package conformance

import (
	"context"
	"testing"

	"github.com/pglock/pglock-go/internal/pgtest"
)

// Locker is a kind of lock in one process. Many goroutines use it at once.
type Locker interface {
	// Lock waits for the lock of that name until ctx is done.
	Lock(ctx context.Context, name string) (Unlock, error)
	// TryLock tries once and does not wait.
	TryLock(ctx context.Context, name string) (Unlock, error)
}

// Unlock releases a lock.
type Unlock func(ctx context.Context) error

// Kind makes lockers for a test, each as if in a process of its own. They share their locks and end
// with the test.
type Kind func(t *testing.T) (open func() Locker)

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

// lock locks the name n and fails the test after an error.
func lock(t *testing.T, l Locker) Unlock {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), pgtest.Patience)
	defer cancel()
	unlock, err := l.Lock(ctx, "n")
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
