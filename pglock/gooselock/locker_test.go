package gooselock

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
)

// openClient opens a client on a schema of its own. The end of the test closes it.
func openClient(t *testing.T) *pglock.Client {
	t.Helper()
	pool := pgtest.Pool(t)
	client, err := pglock.Open(t.Context(), pool, pglock.WithSchema(pgtest.Schema(t, pool)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return client
}

// TestI3_StopOnLossReadsTheClock: after a pause past the lease's deadline, the first call of Err
// reports the loss, although no timer has run yet.
func TestI3_StopOnLossReadsTheClock(t *testing.T) {
	t.Parallel()
	locker, err := NewLocker(openClient(t), "m", WithLease(pglock.WithTTL(time.Second), pglock.WithRenewEvery(0)))
	if err != nil {
		t.Fatal(err)
	}
	for range 4 { // without reading the clock, the timer is first in about one round of two
		ctx, stop := locker.StopOnLoss(t.Context())
		if err := locker.Lock(ctx, nil); err != nil {
			t.Fatal(err)
		}
		locktest.WaitUntilPast(locker.lease.Deadline())
		if err := ctx.Err(); err == nil || !errors.Is(context.Cause(ctx), pglock.ErrLost) {
			t.Errorf("past the deadline the context says %v, cause %v", err, context.Cause(ctx))
		}
		if err := locker.Unlock(ctx, nil); !errors.Is(err, pglock.ErrLost) {
			t.Errorf("Unlock: %v", err)
		}
		stop()
	}
}

// TestLossIsLogged, because goose does not learn of it before Unlock.
func TestLossIsLogged(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		end  func(client *pglock.Client, l *Locker) error
		want bool
	}{
		"lost":     {func(_ *pglock.Client, l *Locker) error { <-l.lease.Done(); return nil }, true},
		"closed":   {func(client *pglock.Client, _ *Locker) error { return client.Close(context.Background()) }, true},
		"unlocked": {func(_ *pglock.Client, l *Locker) error { return l.Unlock(context.Background(), nil) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client := openClient(t)
			logged := make(chan slog.Record, 1)
			var lease []pglock.LeaseOption
			if name == "lost" {
				lease = []pglock.LeaseOption{pglock.WithTTL(time.Second), pglock.WithRenewEvery(0)}
			}
			locker, err := NewLocker(client, "m", WithLogger(slog.New(locktest.Records(logged))), WithLease(lease...))
			if err != nil {
				t.Fatal(err)
			}
			if err := locker.Lock(t.Context(), nil); err != nil {
				t.Fatal(err)
			}
			held := locker.lease
			if err := c.end(client, locker); err != nil && !errors.Is(err, pglock.ErrLost) {
				t.Fatal(err)
			}
			if !c.want {
				after := make(chan struct{}) // closed about when the locker's own function runs
				context.AfterFunc(held.Context(), func() { close(after) })
				<-after
				select {
				case r := <-logged:
					t.Errorf("logged: %v", r)
				default:
				}
				return
			}
			if r := <-logged; r.Level != slog.LevelWarn {
				t.Errorf("logged: %v", r)
			}
		})
	}
	for _, l := range []*slog.Logger{nil, slog.Default()} {
		if _, err := NewLocker(openClient(t), "m", WithLogger(l)); err != nil {
			t.Errorf("logger %v: %v", l, err)
		}
	}
}

// TestStopOnLossEndsWithTheClient: a client that is closed releases the lock while goose still
// migrates.
func TestStopOnLossEndsWithTheClient(t *testing.T) {
	t.Parallel()
	client := openClient(t)
	locker, err := NewLocker(client, "m")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := locker.StopOnLoss(t.Context())
	defer stop()
	if err := locker.Lock(ctx, nil); err != nil {
		t.Fatal(err)
	}
	if err := client.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := ctx.Err(); err == nil || !errors.Is(context.Cause(ctx), pglock.ErrClosed) {
		t.Errorf("after the client's end the context says %v, cause %v", err, context.Cause(ctx))
	}
}

// TestStopOnLossOutlivesUnlock: a release does not end the context of the run.
func TestStopOnLossOutlivesUnlock(t *testing.T) {
	t.Parallel()
	locker, err := NewLocker(openClient(t), "m")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := locker.StopOnLoss(t.Context())
	defer stop()
	for range 2 { // goose may take the lock again under the same context
		if err := locker.Lock(ctx, nil); err != nil {
			t.Fatal(err)
		}
		if err := locker.Unlock(ctx, nil); err != nil {
			t.Fatal(err)
		}
		if err := ctx.Err(); err != nil {
			t.Errorf("after Unlock the context says %v", context.Cause(ctx))
		}
	}
}
