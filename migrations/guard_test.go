package migrations_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/migrations"
	"github.com/pglock/pglock-go/pglock"
)

// TestI1_P42_GuardExcludes: a function that has begun keeps the others out until it ends. Without
// it, the control, all are in there together: each waits until all have come.
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
	var told listener
	var clients []*pglock.Client
	for range runners {
		clients = append(clients, leaseClient(t, url))
	}
	first := true
	crowd(func(i int, fn func(ctx context.Context) error) error {
		return migrations.Guard(t.Context(), clients[i], "m", fn, told.option(i))
	}, func() {
		if first { // guarded by the lock: the race detector looks
			first = false
			pgtest.Eventually(t, patience, "the others wait", func() bool { return told.waiting() == runners-1 })
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

// TestGuard holds its contract: errors, loss, panics.
func TestGuard(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	pool := pgtest.PoolOn(t, url)
	client := leaseClient(t, url)
	mine := errors.New("mine")
	if err := migrations.Guard(t.Context(), client, "m", func(context.Context) error { return mine }); !errors.Is(err, mine) {
		t.Errorf("fn's error: %v", err)
	}
	beside := func(context.Context) error {
		t.Error("ran beside another one")
		return nil
	}
	err := migrations.Guard(t.Context(), client, "m", func(ctx context.Context) error {
		var held *migrations.WaitError
		err := migrations.Guard(ctx, client, "m", beside, migrations.WithTimeout(200*time.Millisecond))
		if !errors.As(err, &held) || held.Lock != "m" || held.Holder != "the holder" || !errors.Is(err, migrations.ErrTimeout) || !errors.Is(err, pglock.ErrNotAcquired) {
			t.Errorf("while it is held: %v", err)
		}
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		log := &firstLine{told: cancel}
		err = migrations.Guard(ctx, client, "m", beside, migrations.WithLogger(slog.New(slog.NewTextHandler(log, nil))))
		if !errors.Is(err, context.Canceled) || !strings.Contains(log.String(), "the holder") {
			t.Errorf("a waiter's log: %q, %v", log.String(), err)
		}
		return nil
	}, migrations.WithHolder("the holder"))
	if err != nil {
		t.Error(err)
	}
	err = migrations.Guard(t.Context(), client, "m", func(ctx context.Context) error {
		mustExec(t, pool, "UPDATE pglock.distributed_locks SET token = pglock.next_fencing_token(), version = version + 1, expires_at = clock_timestamp() WHERE holder IS NOT NULL")
		<-ctx.Done()
		if !errors.Is(context.Cause(ctx), pglock.ErrLost) {
			t.Errorf("the cause: %v", context.Cause(ctx))
		}
		return nil
	})
	if !errors.Is(err, migrations.ErrLost) {
		t.Errorf("lost, and the function did not mind: %v", err)
	}
	func() {
		defer func() {
			if r := recover(); r != "oh" {
				t.Errorf("recovered %v", r)
			}
		}()
		_ = migrations.Guard(t.Context(), client, "m", func(context.Context) error { panic("oh") })
	}()
	wantNoLock(t, pool)
	for name, err := range map[string]error{
		"no client":   migrations.Guard(t.Context(), nil, "m", func(context.Context) error { return nil }),
		"no function": migrations.Guard(t.Context(), client, "m", nil),
		"option":      migrations.Guard(t.Context(), client, "m", func(context.Context) error { return nil }, migrations.WithTimeout(-1)),
	} {
		if !errors.Is(err, migrations.ErrInvalidOption) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := migrations.Guard(t.Context(), client, "", func(context.Context) error { return nil }); !errors.Is(err, pglock.ErrInvalidName) {
		t.Errorf("no name: %v", err)
	}
}

// firstLine is a log that tells when something is written to it.
type firstLine struct {
	mu   sync.Mutex
	text strings.Builder
	told func()
}

func (l *firstLine) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.told()
	return l.text.Write(p)
}

func (l *firstLine) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}
