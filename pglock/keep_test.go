package pglock_test

import (
	"errors"
	"testing"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/pglock"
)

// TestKeepPermits: the permits beyond those that are kept go to the next waiter, without a moment in which
// the others are free, and with the same token.
func TestKeepPermits(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		c, other := f.open(), f.open()
		l := held(t, c.Semaphore("s", 4).Weight(4))
		waiting := f.waits(other.Semaphore("s", 4).Weight(2))
		for _, n := range []int{3, 3, 4} { // the later ones change nothing
			must(t, l.KeepPermits(t.Context(), n))
		}
		if info := get(t, c, "s"); info.InUse() != 3 || len(info.Waiters) != 1 {
			t.Fatalf("%d permits in use, %d waiters; want 3 and 1: two are not free", info.InUse(), len(info.Waiters))
		}
		must(t, l.KeepPermits(t.Context(), 2))
		w := next(t, waiting)
		if info := get(t, c, "s"); info.InUse() != 4 || len(info.Grants) != 2 || info.Grants[0].Token != l.Token() || info.Grants[0].Permits != 2 {
			t.Fatalf("%+v; want two grants of two permits, the first with token %d", info.Grants, l.Token())
		}
		tx := f.begin()
		check(t, l.Guard(t.Context(), tx))
		fails(t, "Bind", l.Bind(t.Context(), tx), fencing.ErrShared)
		must(t, tx.Rollback(t.Context()))
		isBusy(t, "a fifth permit", other.Semaphore("s", 4))
		release(t, l)
		release(t, w)
		release(t, held(t, c.Semaphore("s", 4).Weight(4))) // none was lost
		fails(t, "after the release", l.KeepPermits(t.Context(), 1), pglock.ErrReleased)
	})
}

func TestKeepPermitsRefuses(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		c := f.open()
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
	})
}
