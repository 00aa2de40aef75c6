package runner_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/runner"
)

// TestI1_P42_GuardExcludes: no other function runs before the first has returned. In the control,
// without Guard, all run at once: each waits until all have begun.
func TestI1_P42_GuardExcludes(t *testing.T) {
	t.Parallel()
	const runners = 4
	var mu sync.Mutex
	inside, peak := 0, 0 // guarded by mu
	step := func(by int) {
		mu.Lock()
		defer mu.Unlock()
		inside += by
		peak = max(peak, inside)
	}
	crowd := func(enter func(i int, fn func(ctx context.Context) error) error, fn func()) {
		var all sync.WaitGroup
		for i := range runners {
			all.Go(func() {
				err := enter(i, func(context.Context) error {
					step(1)
					fn()
					step(-1)
					return nil
				})
				if err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
	}
	url := pgtest.Database(t)
	var waits waitCounter
	var clients []*pglock.Client
	for range runners {
		clients = append(clients, locktest.Client(t, url))
	}
	first := true
	crowd(func(i int, fn func(ctx context.Context) error) error {
		return runner.Guard(t.Context(), clients[i], "m", fn, waits.option(i))
	}, func() {
		if first { // guarded by the lock: the race detector looks
			first = false
			pgtest.Eventually(t, locktest.Patience, "the others wait", func() bool { return waits.waiting() == runners-1 })
		}
	})
	if peak != 1 {
		t.Errorf("%d at once", peak)
	}
	var met sync.WaitGroup
	met.Add(runners)
	crowd(func(_ int, fn func(ctx context.Context) error) error { return fn(t.Context()) }, func() {
		met.Done()
		met.Wait()
	})
	if peak != runners {
		t.Errorf("control: %d at once", peak)
	}
}

// TestGuard: errors, loss, panics.
func TestGuard(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	pool := pgtest.PoolOn(t, url)
	client := locktest.Client(t, url)
	mine := errors.New("mine")
	if err := runner.Guard(t.Context(), client, "m", func(context.Context) error { return mine }); !errors.Is(err, mine) {
		t.Errorf("fn's error: %v", err)
	}
	other := func(context.Context) error {
		t.Error("ran at the same time as another one")
		return nil
	}
	err := runner.Guard(t.Context(), client, "m", func(ctx context.Context) error {
		if err := runner.Guard(ctx, client, "m", other); !errors.Is(err, pglock.ErrHeldByCaller) { // it would wait for itself
			t.Errorf("nested: %v", err)
		}
		var held *runner.WaitError
		err := runner.Guard(t.Context(), client, "m", other, runner.WithTimeout(200*time.Millisecond))
		if !errors.As(err, &held) || held.Lock != "m" || held.Holder != "the holder" || !errors.Is(err, runner.ErrTimeout) || !errors.Is(err, pglock.ErrNotAcquired) {
			t.Errorf("while it is held: %v", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		log := &firstLine{written: cancel}
		err = runner.Guard(ctx, client, "m", other, runner.WithLogger(slog.New(slog.NewTextHandler(log, nil))))
		if !errors.Is(err, context.Canceled) || !strings.Contains(log.String(), "the holder") {
			t.Errorf("a waiter's log: %q, %v", log.String(), err)
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
	if !errors.Is(err, runner.ErrLost) {
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
		"no client":   runner.Guard(t.Context(), nil, "m", func(context.Context) error { return nil }),
		"no function": runner.Guard(t.Context(), client, "m", nil),
		"option":      runner.Guard(t.Context(), client, "m", func(context.Context) error { return nil }, runner.WithTimeout(-1)),
	} {
		if !errors.Is(err, runner.ErrInvalidOption) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := runner.Guard(t.Context(), client, "", func(context.Context) error { return nil }); !errors.Is(err, pglock.ErrInvalidOption) {
		t.Errorf("no name: %v", err)
	}
}

// firstLine is a log that calls a function at each line.
type firstLine struct {
	mu      sync.Mutex
	text    strings.Builder
	written func()
}

func (l *firstLine) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.written()
	return l.text.Write(p)
}

func (l *firstLine) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}
