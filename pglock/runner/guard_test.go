package runner_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/runner"
)

// TestGuard: exclusion, errors, loss, panics.
func TestGuard(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	pool := pgtest.PoolOn(t, url)
	client := locktest.Client(t, url)
	mine := errors.New("mine")
	if err := runner.Guard(t.Context(), client, "m", func(context.Context) error { return mine }); !errors.Is(err, mine) {
		t.Errorf("fn's error: %v", err)
	}
	ran := 0
	other := func(context.Context) error { ran++; return nil }
	err := runner.Guard(t.Context(), client, "m", func(ctx context.Context) error {
		if err := runner.Guard(ctx, client, "m", other); !errors.Is(err, pglock.ErrHeldByCaller) { // it would wait for itself
			t.Errorf("nested: %v", err)
		}
		var held *pglock.WaitError
		err := runner.Guard(t.Context(), client, "m", other, runner.WithTimeout(200*time.Millisecond))
		if !errors.As(err, &held) || held.Name != "m" || !strings.Contains(err.Error(), "the holder (token") || !errors.Is(err, pglock.ErrTimeout) || !errors.Is(err, pglock.ErrNotAcquired) {
			t.Errorf("while it is held: %v", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		logged, waited := make(chan slog.Record, 1), make(chan error, 1)
		go func() {
			waited <- runner.Guard(ctx, client, "m", other, runner.WithReports(time.Minute, slog.New(locktest.Records(logged))))
		}()
		if r := locktest.Receive(t, logged); !strings.Contains(r.Message, "the holder") {
			t.Errorf("a waiter's log: %q", r.Message)
		}
		cancel()
		if err := locktest.Receive(t, waited); !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled: %v", err)
		}
		if err := runner.Guard(t.Context(), client, "n", other); err != nil || ran != 1 { // the control
			t.Errorf("another name: %v; %d ran at the same time", err, ran)
		}
		return nil
	}, runner.WithHolder("the holder"))
	if err != nil {
		t.Error(err)
	}
	err = runner.Guard(t.Context(), client, "m", func(ctx context.Context) error {
		locktest.Exec(t, pool, "UPDATE pglock.distributed_locks SET token = pglock.next_fencing_token(), version = version + 1, expires_at = clock_timestamp() WHERE holder IS NOT NULL")
		<-ctx.Done()
		if !errors.Is(context.Cause(ctx), pglock.ErrLost) {
			t.Errorf("the cause: %v", context.Cause(ctx))
		}
		return nil
	})
	if !errors.Is(err, pglock.ErrLost) {
		t.Errorf("lost, and the function returned nil: %v", err)
	}
	func() {
		defer func() {
			if r := recover(); r != "oh" {
				t.Errorf("recovered %v", r)
			}
		}()
		_ = runner.Guard(t.Context(), client, "m", func(context.Context) error { panic("oh") })
	}()
	locktest.NoLockLeft(t, pool)
	for name, err := range map[string]error{
		"no client":   runner.Guard(t.Context(), nil, "m", other),
		"no function": runner.Guard(t.Context(), client, "m", nil),
		"no name":     runner.Guard(t.Context(), client, "", other),
		"option":      runner.Guard(t.Context(), client, "m", other, runner.WithTimeout(-1)),
		"of Run":      runner.Guard(t.Context(), client, "m", other, runner.AllowNewer()),
		"of a lock":   runner.Guard(t.Context(), client, "m", other, runner.WithKey(7)),
	} {
		if !errors.Is(err, pglock.ErrInvalidOption) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestI3_GuardContextReadsTheClock: after a pause past the lease's deadline, the first call of Err
// reports the loss, although no timer has run yet.
func TestI3_GuardContextReadsTheClock(t *testing.T) {
	t.Parallel()
	client := locktest.Client(t, pgtest.Database(t), pglock.WithTTL(time.Second), pglock.WithRenewEvery(0))
	for range 4 { // without reading the clock, the timer is first in about one round of two
		var lease *pglock.Lease
		err := runner.Guard(t.Context(), client, "m", func(ctx context.Context) error {
			locktest.WaitUntilPast(lease.Deadline())
			if err := ctx.Err(); err == nil || !errors.Is(context.Cause(ctx), pglock.ErrLost) {
				t.Errorf("past the deadline the function's context says %v, cause %v", err, context.Cause(ctx))
			}
			return nil
		}, runner.WithLeaseTo(func(l *pglock.Lease) { lease = l }))
		if !errors.Is(err, pglock.ErrLost) {
			t.Errorf("Guard: %v", err)
		}
	}
}
