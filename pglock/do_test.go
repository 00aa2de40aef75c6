package pglock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/pglock/pglock-go/pglock"
)

// TestDoHoldsTheLockAndReleasesIt, as does TryDo, which does not run its function while others hold the
// lock. The end of WithWait does not end the work.
func TestDoHoldsTheLockAndReleasesIt(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		c := f.open()
		never := func(context.Context, *pglock.Lease) error { t.Error("the function ran without the lock"); return nil }
		type work = func(context.Context, *pglock.Lease) error
		for what, do := range map[string]func(context.Context, string, work, ...pglock.LeaseOption) error{"Do": c.Do, "TryDo": c.TryDo} {
			ran := false
			err := do(t.Context(), "n", func(ctx context.Context, l *pglock.Lease) error {
				ran = true
				if got, ok := pglock.FromContext(ctx, "n"); !ok || got != l {
					t.Errorf("the function's context carries %v, %v", got, ok)
				}
				if k := get(t, c, "n"); !k.Held() || k.Token != l.Token() {
					t.Errorf("meanwhile the table has %+v", k)
				}
				var busy *pglock.BusyError
				if err := c.TryDo(t.Context(), "n", never); !errors.As(err, &busy) || busy.Token != l.Token() ||
					busy.Remaining <= 0 || busy.Remaining > 30*time.Second {
					t.Errorf("TryDo of a held lock: %v", err)
				}
				fails(t, "Do of a held lock", c.Do(t.Context(), "n", never, pglock.WithWait(20*time.Millisecond)), pglock.ErrTimeout)
				return ctx.Err()
			}, pglock.WithWait(10*time.Millisecond))
			if err != nil || !ran {
				t.Errorf("%s ran: %v, %v", what, ran, err)
			}
			f.empty("n")
			fails(t, "no function", do(t.Context(), "n", nil), pglock.ErrInvalidOption)
		}
	})
}

// TestDoReturnsTheFunctionsError unchanged: callers may compare it with ==.
func TestDoReturnsTheFunctionsError(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		c := f.open()
		failure := errors.New("the work failed")
		if err := c.Do(t.Context(), "n", func(context.Context, *pglock.Lease) error { return failure }); err != failure { //nolint:errorlint // identity is the point
			t.Errorf("Do: %#v", err)
		}
		f.empty("n")
	})
}

func TestDoEndsWithItsContext(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		c := f.open()
		ctx, cancel := context.WithCancel(t.Context())
		err := c.Do(ctx, "n", func(ctx context.Context, l *pglock.Lease) error {
			cancel()
			<-ctx.Done()
			if l.Err() != nil {
				t.Errorf("the lease ended with the caller's context: %v", l.Err())
			}
			return ctx.Err()
		})
		if !errors.Is(err, context.Canceled) || errors.Is(err, pglock.ErrLost) {
			t.Error(err)
		}
		f.empty("n")
	})
}

// TestDoLeavesALockThatItsFunctionHandsOver: Do does not release it, and another client goes on.
func TestDoLeavesALockThatItsFunctionHandsOver(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		c := f.open()
		var fence pglock.Fence
		err := c.Do(t.Context(), "n", func(_ context.Context, l *pglock.Lease) (err error) {
			fence, err = l.HandOver()
			return err
		})
		must(t, err)
		isBusy(t, "the lock is free", c.Lock("n"))
		l, err := c.Adopt(t.Context(), fence)
		must(t, err)
		check(t, l.Release(t.Context()))
		fails(t, "after the release", second(c.Adopt(t.Context(), fence)), pglock.ErrStale)
	})
}

// TestP41_DoReturnsTheReleaseError: the server becomes unreachable while the function runs.
func TestP41_DoReturnsTheReleaseError(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		proxy, far := f.proxied()
		err := far.open().Do(t.Context(), "n", func(context.Context, *pglock.Lease) error {
			proxy.Refuse(true)
			proxy.Sever()
			return nil
		})
		if !errors.Is(err, pglock.ErrUnavailable) || errors.Is(err, pglock.ErrLost) {
			t.Errorf("Do: %v", err)
		}
		proxy.Refuse(false)
	})
}
