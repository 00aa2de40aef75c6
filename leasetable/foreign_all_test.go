//nolint:thelper // the functions are the test cases
package leasetable_test

import (
	"errors"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/leasetable"
)

// The cases of other packages' suites for several locks at once, under the names that they have there.
// Only what they require is taken over.

// TestDistributedLockComposite has the cases of madelson/DistributedLock:
// DistributedLockProviderExtensionsTest. The suites of its single locks, which it runs on a lock of two
// names, are covered by the conformance suite on several names.
func TestDistributedLockComposite(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for name, test := range map[string]func(t *testing.T, c *leasetable.Client, a, b string){
		"TestCompositeArgumentValidation": func(t *testing.T, c *leasetable.Client, a, _ string) {
			for _, names := range [][]string{nil, {}, {a, ""}} {
				_, err := c.AcquireAll(t.Context(), names)
				_, tryErr := c.TryAcquireAll(t.Context(), names)
				for _, err := range []error{err, tryErr} {
					if !errors.Is(err, leasetable.ErrInvalidName) && !errors.Is(err, leasetable.ErrInvalidOption) {
						t.Errorf("%q: %v", names, err)
					}
				}
			}
			release(t, try(t, c, a))
		},
		"TestCompositePartialAcquisitionFailure": func(t *testing.T, c *leasetable.Client, a, b string) {
			holder := try(t, c, b)
			_, err := c.TryAcquireAll(t.Context(), []string{a, b})
			_ = busyName(t, err, b)  // fails the test itself
			release(t, try(t, c, a)) // it is free
			release(t, holder)
		},
		"TestCompositeSuccessfulAcquisition": func(t *testing.T, c *leasetable.Client, a, b string) {
			for _, wait := range []bool{false, true} {
				acquire := c.TryAcquireAll
				if wait {
					acquire = c.AcquireAll
				}
				l, err := acquire(t.Context(), []string{a, b})
				if err != nil {
					t.Fatal(err)
				}
				for _, name := range []string{a, b} {
					_, err := c.TryAcquire(t.Context(), name)
					_ = busyName(t, err, name)
				}
				release(t, l)
				release(t, try(t, c, a))
				release(t, try(t, c, b))
			}
		},
		"TestCompositeAcquireThrowsOnTimeout": func(t *testing.T, c *leasetable.Client, a, b string) {
			holder := try(t, c, b)
			for _, wait := range []time.Duration{0, 50 * time.Millisecond} {
				_, err := c.AcquireAll(t.Context(), []string{a, b}, leasetable.WithWait(wait))
				if !errors.Is(err, leasetable.ErrNotAcquired) || wait > 0 && !errors.Is(err, leasetable.ErrTimeout) {
					t.Errorf("after %v: %v", wait, err)
				}
			}
			release(t, holder)
		},
		"TestCompositeRemainingTimeDistribution": func(t *testing.T, c *leasetable.Client, a, b string) {
			holders := []*leasetable.Lease{try(t, c, a), try(t, c, b)}
			const wait = 600 * time.Millisecond // for all names together, not for each
			time.AfterFunc(wait/2, func() { _ = holders[0].Release(t.Context()) })
			began := time.Now()
			_, err := c.AcquireAll(t.Context(), []string{a, b}, leasetable.WithWait(wait))
			if took := time.Since(began); !errors.Is(err, leasetable.ErrTimeout) || took < wait || took > wait+wait/2+2*time.Second {
				t.Errorf("after %v: %v", took, err)
			}
			release(t, holders[1])
		},
		"TestCompositeHandleLostToken": func(t *testing.T, c *leasetable.Client, a, b string) {
			l := tryAll(t, c, []string{a, b})
			if err := c.Revoke(t.Context(), b, l.Token(), "test"); err != nil {
				t.Fatal(err)
			}
			within(t, 20*time.Second, "its context", l.Done())
			var lost *leasetable.LostError
			if !errors.As(l.Err(), &lost) || lost.Name != b {
				t.Errorf("told %v", l.Err())
			}
			_ = l.Release(t.Context()) // it was lost
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, f.open(), name+" A", name+" B")
		})
	}
}

// TestCuratorMultiLock has the cases of Curator's TestInterProcessMultiMutex. Its locks are objects,
// of which one may be faulty. Here a lost name takes that place.
func TestCuratorMultiLock(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for name, test := range map[string]func(t *testing.T, c *leasetable.Client, a, b string){
		"testBasic": func(t *testing.T, c *leasetable.Client, a, b string) {
			l := tryAll(t, c, []string{a, b})
			for _, name := range []string{a, b} {
				_, err := c.TryAcquire(t.Context(), name)
				_ = busyName(t, err, name)
			}
			release(t, l)
			release(t, try(t, c, a))
			release(t, try(t, c, b))
		},
		"testSomeLocksLock": func(t *testing.T, c *leasetable.Client, a, b string) {
			holder := try(t, c, b)
			if _, err := c.AcquireAll(t.Context(), []string{a, b}, leasetable.WithWait(100*time.Millisecond)); !errors.Is(err, leasetable.ErrTimeout) {
				t.Errorf("told %v", err)
			}
			release(t, acquire(t, c, a)) // nobody holds it, and nobody waits
			release(t, holder)
		},
		"testSomeReleasesFail": func(t *testing.T, c *leasetable.Client, a, b string) {
			l := tryAll(t, c, []string{a, b})
			if err := c.Revoke(t.Context(), b, l.Token(), "test"); err != nil {
				t.Fatal(err)
			}
			_ = l.Release(t.Context()) // the one or the other, as it learns of the loss before or not
			pgtest.Eventually(t, 20*time.Second, "the other name is free", func() bool {
				k, err := c.Get(t.Context(), a)
				return err == nil && !k.Held()
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, f.open(), name+" A", name+" B")
		})
	}
}
