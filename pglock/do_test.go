package pglock_test

import (
	"context"
	"errors"
	"net/url"
	"runtime"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/faultproxy"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/pglock"
)

// app is a client with its own schema.
type app struct {
	*pglock.Client
	t      *testing.T
	pool   *pgxpool.Pool
	schema string
}

func newApp(t *testing.T) app {
	t.Helper()
	pool := pgtest.Pool(t)
	f := app{t: t, pool: pool, schema: pgtest.Schema(t, pool)}
	f.Client = f.openOn(pool)
	return f
}

func (f app) openOn(pool *pgxpool.Pool) *pglock.Client {
	f.t.Helper()
	c, err := pglock.Open(f.t.Context(), pool, pglock.WithSchema(f.schema))
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() {
		if err := c.Close(context.Background()); err != nil {
			f.t.Errorf("Close: %v", err)
		}
	})
	return c
}

// free fails the test if the lock is held.
func (f app) free(name string) {
	f.t.Helper()
	if k, err := f.Get(f.t.Context(), name); err != nil || k.Held() {
		f.t.Errorf("the lock should be free: %+v, %v", k, err)
	}
}

// steal grants every lock to a thief.
func (f app) steal() {
	f.t.Helper()
	if _, err := f.pool.Exec(f.t.Context(), schema.Render("UPDATE pglock.distributed_locks SET token = pglock.next_fencing_token(), holder = 'thief'", f.schema)); err != nil {
		f.t.Fatal(err)
	}
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
	if err != nil {
		t.Fatal(err)
	}
	f.free("n")
}

func TestDoReturnsTheFunctionsError(t *testing.T) {
	t.Parallel()
	f := newApp(t)
	failure := errors.New("the work failed")
	if err := f.Do(t.Context(), "n", func(context.Context, *pglock.Lease) error { return failure }); !errors.Is(err, failure) || errors.Is(err, pglock.ErrLost) {
		t.Errorf("Do: %v", err)
	}
	f.free("n")
	if err := f.Do(t.Context(), "n", nil); !errors.Is(err, pglock.ErrInvalidOption) {
		t.Errorf("no function: %v", err)
	}
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
		}, pglock.WithTTL(600*time.Millisecond))
		if !errors.Is(err, pglock.ErrLost) || returned != nil && !errors.Is(err, returned) {
			t.Errorf("the function returned %v, Do %v", returned, err)
		}
		var lost *pglock.LostError
		if !errors.As(err, &lost) || lost.Name != "n" {
			t.Errorf("%v does not name the lost lock", err)
		}
		if _, err := f.pool.Exec(t.Context(), schema.Render("UPDATE pglock.distributed_locks SET holder = NULL, expires_at = '-infinity'", f.schema)); err != nil {
			t.Fatal(err)
		}
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

// TestDoContextChecksTheClock: the function's context is done as soon as the deadline has passed,
// before a timer has run.
func TestDoContextChecksTheClock(t *testing.T) {
	t.Parallel()
	f := newApp(t)
	err := f.Do(t.Context(), "n", func(ctx context.Context, l *pglock.Lease) error {
		for time.Now().Before(l.Deadline()) {
			runtime.Gosched()
		}
		if ctx.Err() == nil {
			t.Error("past the deadline the function's context is not done")
		}
		return nil
	}, pglock.WithTTL(100*time.Millisecond), pglock.WithRenewEvery(0))
	if !errors.Is(err, pglock.ErrLost) {
		t.Errorf("Do: %v", err)
	}
}

// TestP41_DoReturnsTheReleaseError: the server becomes unreachable while the function runs.
func TestP41_DoReturnsTheReleaseError(t *testing.T) {
	t.Parallel()
	f := newApp(t)
	u, err := url.Parse(pgtest.URL(t))
	if err != nil {
		t.Fatal(err)
	}
	proxy := faultproxy.New(t, u.Host)
	c := f.openOn(pgtest.PoolOn(t, proxy.URL(u.String())))
	err = c.Do(t.Context(), "n", func(context.Context, *pglock.Lease) error {
		proxy.Refuse(true)
		proxy.Sever()
		return nil
	})
	if !errors.Is(err, pglock.ErrUnavailable) || errors.Is(err, pglock.ErrLost) {
		t.Errorf("Do: %v", err)
	}
	proxy.Refuse(false)
}

func TestDoDoesNotRunWithoutTheLock(t *testing.T) {
	t.Parallel()
	f := newApp(t)
	l, err := f.Acquire(t.Context(), "n")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	err = f.Do(ctx, "n", func(context.Context, *pglock.Lease) error {
		t.Error("the function ran")
		return nil
	})
	if !errors.Is(err, pglock.ErrNotAcquired) || !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	if err := l.Release(t.Context()); err != nil {
		t.Error(err)
	}
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
	if err := f.TryDo(t.Context(), "n", nil); !errors.Is(err, pglock.ErrInvalidOption) {
		t.Errorf("no function: %v", err)
	}
}

// TestDoReportsAClosedClient: another holder may have the lock while the function still runs.
func TestDoReportsAClosedClient(t *testing.T) {
	t.Parallel()
	f := newApp(t)
	c := f.openOn(f.pool)
	err := c.Do(t.Context(), "n", func(ctx context.Context, _ *pglock.Lease) error {
		if err := c.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if ctx.Err() == nil {
			t.Error("the function's context is not done")
		}
		return nil
	})
	if !errors.Is(err, pglock.ErrClosed) {
		t.Errorf("Do: %v", err)
	}
}

// TestDoReturnsTheFunctionsErrorUnchanged: callers may compare it with ==.
func TestDoReturnsTheFunctionsErrorUnchanged(t *testing.T) {
	t.Parallel()
	f := newApp(t)
	mine := errors.New("mine")
	if err := f.Do(t.Context(), "n", func(context.Context, *pglock.Lease) error { return mine }); err != mine { //nolint:errorlint // identity is the point
		t.Errorf("Do: %#v", err)
	}
}
