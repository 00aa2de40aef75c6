package pglock_test

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/pglock"
)

// app is a fixture with a client that has the rights of the owner.
type app struct {
	fixture
	*pglock.Client
}

func newApp(t *testing.T) app {
	t.Helper()
	f := newFixture(t)
	return app{f, f.openOn(f.pool)}
}

// openOn returns a client that uses the role of a pool.
func (f fixture) openOn(pool *pgxpool.Pool) *pglock.Client {
	f.t.Helper()
	return locktest.ClientOn(f.t, pool, pglock.WithSchema(f.schema))
}

// free fails the test if the lock is held.
func (f app) free(name string) {
	f.t.Helper()
	if k, err := f.Get(f.t.Context(), name); err != nil || k.Held() {
		f.t.Errorf("the lock should be free: %+v, %v", k, err)
	}
}

// steal grants every lock to a thief.
func (f fixture) steal() {
	f.t.Helper()
	f.sql("UPDATE pglock.distributed_locks SET token = pglock.next_fencing_token(), holder = 'thief'")
}

func TestDoHoldsTheLockAndReleasesIt(t *testing.T) {
	t.Parallel()
	f := newApp(t)
	err := f.Do(t.Context(), "n", func(ctx context.Context, l *pglock.Lease) error {
		if k, err := f.Get(ctx, "n"); err != nil || !k.Held() || k.Token != l.Token() {
			t.Errorf("during Do the table has %+v, %v", k, err)
		}
		_, err := f.TryAcquire(t.Context(), "n")
		var busy *pglock.BusyError
		if !errors.As(err, &busy) || busy.Token != l.Token() || busy.Remaining <= 0 || busy.Remaining > 30*time.Second {
			t.Errorf("a second try got %v", err)
		}
		return ctx.Err()
	})
	must(t, err)
	f.free("n")
}

// TestDoReturnsTheFunctionsError unchanged: callers may compare it with ==.
func TestDoReturnsTheFunctionsError(t *testing.T) {
	t.Parallel()
	f := newApp(t)
	failure := errors.New("the work failed")
	if err := f.Do(t.Context(), "n", func(context.Context, *pglock.Lease) error { return failure }); err != failure { //nolint:errorlint // identity is the point
		t.Errorf("Do: %#v", err)
	}
	f.free("n")
	fails(t, "no function", f.Do(t.Context(), "n", nil), pglock.ErrInvalidOption)
}

func TestDoReleasesOnPanicAndOnGoexit(t *testing.T) {
	t.Parallel()
	f := newApp(t)
	func() {
		defer func() {
			if got := recover(); got != "boom" {
				t.Errorf("recovered %v", got)
			}
		}()
		_ = f.Do(t.Context(), "n", func(context.Context, *pglock.Lease) error { panic("boom") })
	}()
	f.free("n")
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = f.Do(t.Context(), "n", func(context.Context, *pglock.Lease) error { runtime.Goexit(); return nil })
	}()
	<-done
	f.free("n")
}

func TestDoReportsTheLoss(t *testing.T) {
	t.Parallel()
	f := newApp(t)
	failure := errors.New("interrupted")
	for _, returned := range []error{nil, failure} {
		err := f.Do(t.Context(), "n", func(ctx context.Context, _ *pglock.Lease) error {
			f.steal()
			select {
			case <-ctx.Done():
			case <-time.After(10 * time.Second):
				t.Error("the function's context is not done after the loss")
			}
			if !errors.Is(context.Cause(ctx), pglock.ErrLost) {
				t.Errorf("the function's context ended by %v", context.Cause(ctx))
			}
			return returned
		}, pglock.WithTTL(5*time.Second))
		if !errors.Is(err, pglock.ErrLost) || returned != nil && !errors.Is(err, returned) {
			t.Errorf("the function returned %v, Do %v", returned, err)
		}
		var lost *pglock.LostError
		if !errors.As(err, &lost) || lost.Name != "n" {
			t.Errorf("%v does not name the lost lock", err)
		}
		f.sql("UPDATE pglock.distributed_locks SET holder = NULL, expires_at = '-infinity'")
	}
}

func TestDoEndsWithItsContext(t *testing.T) {
	t.Parallel()
	f := newApp(t)
	ctx, cancel := context.WithCancel(t.Context())
	err := f.Do(ctx, "n", func(ctx context.Context, l *pglock.Lease) error {
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
	f.free("n")
}

// TestP41_DoReturnsTheReleaseError: the server becomes unreachable while the function runs.
func TestP41_DoReturnsTheReleaseError(t *testing.T) {
	t.Parallel()
	f := newApp(t)
	proxy, far := f.proxied()
	err := f.openOn(far.pool).Do(t.Context(), "n", func(context.Context, *pglock.Lease) error {
		proxy.Refuse(true)
		proxy.Sever()
		return nil
	})
	if !errors.Is(err, pglock.ErrUnavailable) || errors.Is(err, pglock.ErrLost) {
		t.Errorf("Do: %v", err)
	}
	proxy.Refuse(false)
}

// TestTryDoRunsOrTellsWhoHoldsTheLock also holds that WithWait bounds the wait and not the work.
func TestTryDoRunsOrTellsWhoHoldsTheLock(t *testing.T) {
	t.Parallel()
	f := newApp(t)
	runs := 0
	err := f.TryDo(t.Context(), "n", func(ctx context.Context, l *pglock.Lease) error {
		runs++
		never := func(context.Context, *pglock.Lease) error {
			t.Error("the function ran without the lock")
			return nil
		}
		// Not under ctx: this call knows nothing of the lease.
		other := t.Context()
		var busy *pglock.BusyError
		if err := f.TryDo(other, "n", never); !errors.As(err, &busy) || busy.Token != l.Token() || busy.Holder != l.Holder() {
			t.Errorf("TryDo of a held lock: %v", err)
		}
		err := f.Do(other, "n", never, pglock.WithWait(20*time.Millisecond))
		var late *pglock.WaitError
		if !errors.As(err, &late) || !errors.Is(err, pglock.ErrTimeout) || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Do of a held lock: %v", err)
		}
		<-time.After(50 * time.Millisecond) // longer than the wait
		return ctx.Err()
	}, pglock.WithWait(10*time.Millisecond))
	if err != nil || runs != 1 {
		t.Errorf("TryDo ran %d times: %v", runs, err)
	}
	f.free("n")
	fails(t, "no function", f.TryDo(t.Context(), "n", nil), pglock.ErrInvalidOption)
}

// TestDoLeavesALockThatItsFunctionHandsOver: Do does not release it, and another client goes on.
func TestDoLeavesALockThatItsFunctionHandsOver(t *testing.T) {
	t.Parallel()
	f := newApp(t)
	var fence pglock.Fence
	err := f.Do(t.Context(), "n", func(_ context.Context, l *pglock.Lease) (err error) {
		fence, err = l.HandOver()
		return err
	})
	must(t, err)
	isBusy(t, "the lock is free", f.Lock("n"))
	l, err := f.Adopt(t.Context(), fence)
	must(t, err)
	check(t, l.Release(t.Context()))
	fails(t, "after the release", second(f.Adopt(t.Context(), fence)), pglock.ErrStale)
}
