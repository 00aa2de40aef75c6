package pglock_test

import (
	"errors"
	"testing"
	"time"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
)

// TestKeepPermits: the permits beyond those that are kept go to the next waiter, without a moment in which
// the others are free, and with the same token.
func TestKeepPermits(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c, other := f.open(), f.open()
	l := held(t, c.Semaphore("s", 4).Weight(4))
	waiting := make(chan *pglock.Lease, 1)
	go func() {
		w, err := other.Semaphore("s", 4).Weight(2).Acquire(t.Context())
		if err != nil {
			t.Error(err)
		}
		waiting <- w
	}()
	pgtest.Eventually(t, 20*time.Second, "the other client is in the queue", func() bool {
		return value[int](f, "SELECT count(*) FROM pglock.lock_waiters") == 1
	})
	for _, n := range []int{3, 3, 4} { // the later ones change nothing
		if err := l.KeepPermits(t.Context(), n); err != nil {
			t.Fatal(err)
		}
	}
	if info, err := c.Get(t.Context(), "s"); err != nil || info.InUse() != 3 || len(info.Waiters) != 1 {
		t.Fatalf("%d permits in use, %d waiters, %v; want 3 and 1: two are not free", info.InUse(), len(info.Waiters), err)
	}
	if err := l.KeepPermits(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	w := <-waiting
	info, err := c.Get(t.Context(), "s")
	if err != nil || info.InUse() != 4 || len(info.Grants) != 2 || info.Grants[0].Token != l.Token() || info.Grants[0].Permits != 2 {
		t.Fatalf("%+v, %v; want two grants of two permits, the first with token %d", info.Grants, err, l.Token())
	}
	tx := begin(t, f)
	if err := l.Guard(t.Context(), tx); err != nil {
		t.Errorf("guard: %v", err)
	}
	if err := l.Bind(t.Context(), tx); !errors.Is(err, fencing.ErrShared) {
		t.Errorf("bind: %v, want ErrShared", err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := other.Semaphore("s", 4).TryAcquire(t.Context()); !errors.Is(err, pglock.ErrNotAcquired) {
		t.Errorf("a fifth permit: %v, want ErrNotAcquired", err)
	}
	release(t, l)
	release(t, w)
	release(t, held(t, c.Semaphore("s", 4).Weight(4))) // none was lost
	if err := l.KeepPermits(t.Context(), 1); !errors.Is(err, pglock.ErrReleased) {
		t.Errorf("after the release: %v, want ErrReleased", err)
	}
}

func TestKeepPermitsRefuses(t *testing.T) {
	t.Parallel()
	c := newFixture(t).open()
	for name, test := range map[string]struct {
		lock pglock.Lock
		n    int
		want error
	}{
		"no permit":       {c.Semaphore("s", 2), 0, pglock.ErrInvalidOption},
		"one holder":      {c.Lock("n"), 1, pglock.ErrKind},
		"readers–writer":  {c.Writer("rw"), 1, pglock.ErrKind},
		"several names":   {c.All(c.Lock("a"), c.Semaphore("b", 2).Weight(2)), 1, pglock.ErrKind},
		"nothing to keep": {c.Semaphore("t", 2), 2, nil},
	} {
		l := held(t, test.lock)
		if err := l.KeepPermits(t.Context(), test.n); !errors.Is(err, test.want) {
			t.Errorf("%s: %v, want %v", name, err, test.want)
		}
		release(t, l)
	}
}
