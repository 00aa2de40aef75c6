package pglock_test

import (
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/conformance"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
)

// TestConformanceOnAnOddServer migrates and runs the suite in an odd database. Names that differ by
// its rules only are different names, and a batch of them is granted.
func TestConformanceOnAnOddServer(t *testing.T) {
	t.Parallel()
	url := pgtest.OddDatabase(t)
	conformance.Run(t, func(t *testing.T) func() conformance.Locker {
		t.Helper()
		f := on(t, url)
		return func() conformance.Locker { return leasesOf(f.open()) }
	})
	f := on(t, url)
	c, other := f.open(), f.open()
	for _, name := range []string{"i", "I", "ı", "İ", "é", "e\u0301"} {
		l := acquire(t, c, name, pglock.WithTTL(time.Minute))
		if err := l.Extend(t.Context(), time.Hour); err != nil {
			t.Error(err)
		}
		held, err := other.Get(t.Context(), name)
		if err != nil || held.Name != name || held.Token != l.Token() || held.Remaining < 30*time.Minute {
			t.Errorf("%q: %+v, %v", name, held, err)
		}
	}
	s := c.Semaphore("S", 2)
	one := permits(t, s, 1)
	release(t, permits(t, s, 1))
	release(t, one)
	release(t, permits(t, s, 2))
}
