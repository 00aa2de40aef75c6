package pglock_test

import (
	"context"
	"errors"
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

// TestDoHoldsTheLockAndReleasesIt, as does TryDo, which does not run its function while others hold the
// lock. The end of WithWait does not end the work.
func TestDoHoldsTheLockAndReleasesIt(t *testing.T) {
	t.Parallel()
	f := newApp(t)
	never := func(context.Context, *pglock.Lease) error { t.Error("the function ran without the lock"); return nil }
	type work = func(context.Context, *pglock.Lease) error
	for what, do := range map[string]func(context.Context, string, work, ...pglock.LeaseOption) error{"Do": f.Do, "TryDo": f.TryDo} {
		ran := false
		err := do(t.Context(), "n", func(ctx context.Context, l *pglock.Lease) error {
			ran = true
			if got, ok := pglock.FromContext(ctx, "n"); !ok || got != l {
				t.Errorf("the function's context carries %v, %v", got, ok)
			}
			if k := get(t, f.Client, "n"); !k.Held() || k.Token != l.Token() {
				t.Errorf("meanwhile the table has %+v", k)
			}
			var busy *pglock.BusyError
			if err := f.TryDo(t.Context(), "n", never); !errors.As(err, &busy) || busy.Token != l.Token() ||
				busy.Remaining <= 0 || busy.Remaining > 30*time.Second {
				t.Errorf("TryDo of a held lock: %v", err)
			}
			fails(t, "Do of a held lock", f.Do(t.Context(), "n", never, pglock.WithWait(20*time.Millisecond)), pglock.ErrTimeout)
			return ctx.Err()
		}, pglock.WithWait(10*time.Millisecond))
		if err != nil || !ran {
			t.Errorf("%s ran: %v, %v", what, ran, err)
		}
		f.free("n")
		fails(t, "no function", do(t.Context(), "n", nil), pglock.ErrInvalidOption)
	}
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
