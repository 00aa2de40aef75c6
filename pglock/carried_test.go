package pglock_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/faultproxy"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/migrations"
	"github.com/pglock/pglock-go/pglock"
)

// refuses fails the test unless both calls under ctx say at once that ctx holds the lock.
func refuses(ctx context.Context, t *testing.T, c *pglock.Client, l *pglock.Lease) {
	t.Helper()
	for what, call := range map[string]func(context.Context, string, ...pglock.LeaseOption) (*pglock.Lease, error){
		"Acquire": c.Acquire, "TryAcquire": c.TryAcquire,
	} {
		bounded, cancel := context.WithTimeout(ctx, 20*time.Second) // without the check it waits
		_, err := call(bounded, l.Name())
		cancel()
		var held *pglock.HeldError
		if !errors.As(err, &held) || held.Token != l.Token() || held.Holder != l.Holder() || !errors.Is(err, pglock.ErrHeldByCaller) {
			t.Errorf("%s: told %v", what, err)
			continue
		}
		if errors.Is(err, pglock.ErrNotAcquired) || !strings.Contains(err.Error(), "WithJoin") {
			t.Errorf("%s: told %v", what, err)
		}
	}
}

// TestANestedAcquireFailsAtOnce in every context that a lease has given out, for the same client
// and for another one of the same database and schema.
func TestANestedAcquireFailsAtOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c, other := f.open(), f.open()
	l := try(t, c, "n")
	with, cancel := l.WithContext(t.Context())
	defer cancel()
	type key struct{}
	derived := context.WithValue(context.WithoutCancel(with), key{}, 1)
	inner, err := c.Acquire(derived, "another name")
	if err != nil {
		t.Fatal(err)
	}
	for _, ctx := range []context.Context{l.Context(), with, derived, inner.Context()} {
		refuses(ctx, t, c, l)
		refuses(ctx, t, other, l)
		if got, ok := pglock.FromContext(ctx, "n"); !ok || got != l {
			t.Errorf("FromContext: %v, %v", got, ok)
		}
	}
	if got, ok := pglock.FromContext(t.Context(), "n"); ok {
		t.Errorf("a context without a lease carries %v", got)
	}
	release(t, inner)
	release(t, l)
	// Released: it is an ordinary acquire, although the context still carries the lease.
	again, err := other.TryAcquire(derived, "n")
	if err != nil {
		t.Fatal(err)
	}
	if got, ok := pglock.FromContext(derived, "n"); !ok || got != l || got.Err() == nil {
		t.Errorf("FromContext after the release: %v, %v", got, ok)
	}
	release(t, again)
}

// TestALockOfTheSameNameElsewhereIsAnotherLock: another schema, or another database with the same
// schema and even the same token and holder.
func TestALockOfTheSameNameElsewhereIsAnotherLock(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	l := try(t, f.open(), "n", pglock.WithHolder("h"))
	release(t, nested(t, newFixture(t).open(), l))

	elsewhere := fixture{t, pgtest.PoolOn(t, pgtest.Database(t)), f.schema}
	if err := migrations.Up(t.Context(), elsewhere.pool, migrations.WithSchema(f.schema)); err != nil {
		t.Fatal(err)
	}
	c, err := pglock.Open(t.Context(), elsewhere.pool, pglock.WithSchema(f.schema))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(t.Context())
	release(t, nested(t, c, l))
	// Held there by another holder, whose row looks the same.
	elsewhere.sql(`UPDATE pglock.distributed_locks SET token = $1, holder = 'h',
		expires_at = clock_timestamp() + interval '1 hour'`, int64(l.Token()))
	_, err = c.TryAcquire(l.Context(), "n")
	var busy *pglock.BusyError
	if !errors.As(err, &busy) || busy.Token != l.Token() {
		t.Errorf("told %v", err)
	}
	release(t, l)
}

// nested acquires the lock of l through c under the context of l.
func nested(t *testing.T, c *pglock.Client, l *pglock.Lease) *pglock.Lease {
	t.Helper()
	got, err := c.TryAcquire(l.Context(), l.Name())
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// TestBusyTellsOfTheSameClient, for calls whose context does not hold the lock.
func TestBusyTellsOfTheSameClient(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c, other := f.open(), f.open()
	l := try(t, c, "n")
	for _, tc := range []struct {
		client *pglock.Client
		own    bool
	}{{c, true}, {other, false}} {
		_, tried := tc.client.TryAcquire(t.Context(), "n")
		_, waited := tc.client.Acquire(t.Context(), "n", pglock.WithWait(30*time.Millisecond))
		for _, err := range []error{tried, waited} {
			var busy *pglock.BusyError
			if !errors.As(err, &busy) || busy.ThisClient != tc.own || busy.Token != l.Token() || busy.Holder != l.Holder() ||
				busy.Remaining <= 0 || busy.Remaining > 31*time.Second || strings.Contains(err.Error(), "held by this client") != tc.own {
				t.Errorf("told %v", err)
			}
		}
	}
	release(t, l)
}

// TestEveryWaiterTellsWhoHoldsTheLock: also those behind the head, which make no attempt.
func TestEveryWaiterTellsWhoHoldsTheLock(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.open()
	for name, holder := range map[string]*pglock.Client{"mine": c, "theirs": f.open()} {
		l := try(t, holder, name)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				_, err := c.Acquire(ctx, name)
				var busy *pglock.BusyError
				if !errors.As(err, &busy) || busy.Token != l.Token() || busy.Holder != l.Holder() || busy.ThisClient != (name == "mine") {
					t.Errorf("%s: told %v", name, err)
				}
			})
		}
		pgtest.Eventually(t, 10*time.Second, "all wait", func() bool {
			return pglock.Waiting(c, name) == 3 && (name == "mine" || pglock.HeadWaits(c, name))
		})
		cancel()
		wg.Wait()
		release(t, l)
	}
}

// TestANestedAcquireOnADeadServer: whether another client's lease is of the same lock is not known.
// The acquire reports the failure.
func TestANestedAcquireOnADeadServer(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	proxy := faultproxy.New(t, address(f.pool.Config().ConnConfig))
	c := f.through(proxy.URL(pgtest.URL(t))).open()
	l := try(t, f.open(), "n")
	proxy.Refuse(true)
	proxy.Sever()
	if _, err := c.TryAcquire(l.Context(), "n"); !errors.Is(err, pglock.ErrUnavailable) {
		t.Errorf("told %v", err)
	}
	proxy.Refuse(false)
	release(t, l)
}
