package pglocktest_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/once"
	"github.com/pglock/pglock-go/pglock/pglocktest"
)

// The tests of the service that service_test.go has, as a user would write them. service says whether
// they run with a fake, in a bubble where time is free, or with a server.
func service(t *testing.T, test func(t *testing.T, k *pglocktest.Locks, p *payouts, b *inMemory)) {
	t.Helper()
	run := func(t *testing.T, k *pglocktest.Locks) {
		t.Helper()
		b := newBank(k)
		test(t, k, &payouts{locks: k.Client, bank: b}, b)
	}
	t.Run("fake", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) { run(t, pglocktest.Fake(t)) })
	})
	t.Run("server", func(t *testing.T) {
		t.Parallel()
		run(t, pglocktest.New(t, pgtest.Pool(t), calm))
	})
}

func TestServiceIsBusy(t *testing.T) {
	t.Parallel()
	service(t, func(t *testing.T, k *pglocktest.Locks, p *payouts, b *inMemory) {
		t.Helper()
		other := k.Busy("account:a", "another replica")
		if err := p.PayNow(t.Context(), "a", 5); !errors.Is(err, errBusy) {
			t.Errorf("while another replica pays: %v", err)
		}
		locktest.OK(t, other.Release(t.Context()))
		locktest.OK(t, p.PayNow(t.Context(), "a", 5))
		if b.of("a") != 5 {
			t.Errorf("%d cents", b.of("a"))
		}
		k.RequireFree("account:a")
	})
}

// TestServiceLosesItsLock while it works: the work stops, and nothing is written.
func TestServiceLosesItsLock(t *testing.T) {
	t.Parallel()
	service(t, func(t *testing.T, k *pglocktest.Locks, p *payouts, b *inMemory) {
		t.Helper()
		p.work = func(ctx context.Context) {
			l, err := pglock.Require(ctx, "account:a")
			locktest.OK(t, err)
			k.Lose(l)
			pglocktest.RequireContextEnds(t, ctx)
		}
		if err := p.Pay(t.Context(), "a", 5); !errors.Is(err, pglock.ErrLost) || b.of("a") != 0 {
			t.Errorf("%v, %d cents", err, b.of("a"))
		}
	})
}

// TestServiceWritesLate: the replica was suspended, and does not know that another one has the account.
func TestServiceWritesLate(t *testing.T) {
	t.Parallel()
	service(t, func(t *testing.T, k *pglocktest.Locks, p *payouts, b *inMemory) {
		t.Helper()
		p.work = func(ctx context.Context) {
			l, err := pglock.Require(ctx, "account:a")
			locktest.OK(t, err)
			k.Pause(l)
			k.Busy("account:a", "another replica")
		}
		if err := p.Pay(t.Context(), "a", 5); !errors.Is(err, fencing.ErrStale) || b.of("a") != 0 {
			t.Errorf("%v, %d cents", err, b.of("a"))
		}
	})
}

func TestServiceWithoutServer(t *testing.T) {
	t.Parallel()
	service(t, func(t *testing.T, k *pglocktest.Locks, p *payouts, b *inMemory) {
		t.Helper()
		restore := k.Unavailable()
		if err := p.PayNow(t.Context(), "a", 5); !errors.Is(err, pglock.ErrUnavailable) || b.of("a") != 0 {
			t.Errorf("%v, %d cents", err, b.of("a"))
		}
		restore()
		locktest.OK(t, p.Pay(t.Context(), "a", 5))
	})
}

// TestServicePaysInterestOnce among two replicas, on three days, which take no time with a fake.
func TestServicePaysInterestOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		k := pglocktest.Fake(t)
		b := newBank(k)
		ctx, stop := context.WithCancel(t.Context())
		var replicas sync.WaitGroup
		for _, client := range []*pglock.Client{k.Client, k.Open()} {
			replicas.Go(func() { _ = (&payouts{locks: client, bank: b}).Interest(ctx, []string{"a", "b"}) })
		}
		<-time.After(3*24*time.Hour + time.Minute)
		stop()
		replicas.Wait()
		if b.of("a") != 3 || b.of("b") != 3 {
			t.Errorf("%v", b.cents)
		}
	})
}

// TestServiceHasOneLeader, and another one when the first dies.
func TestServiceHasOneLeader(t *testing.T) {
	t.Parallel()
	service(t, func(t *testing.T, k *pglocktest.Locks, _ *payouts, b *inMemory) {
		t.Helper()
		ctx, stop := context.WithCancel(t.Context())
		leads := make(chan string, 10)
		var replicas sync.WaitGroup
		for name, client := range map[string]*pglock.Client{"one": k.Client, "two": k.Open()} {
			replicas.Go(func() {
				_ = (&payouts{locks: client, bank: b}).Lead(ctx, func(ctx context.Context) { leads <- name; <-ctx.Done() })
			})
		}
		first := locktest.Receive(t, leads)
		k.RequireHeld("settlement")
		pgtest.Eventually(t, "the other one waits", func() bool {
			info, err := k.Get(t.Context(), "settlement")
			return err == nil && len(info.Waiters) > 0
		})
		k.Expire("settlement")
		if second := locktest.Receive(t, leads); second == first {
			t.Errorf("%s leads again, although another replica waits", first)
		}
		stop()
		replicas.Wait()
	})
}

// TestServiceAnswersARetry with the first answer.
func TestServiceAnswersARetry(t *testing.T) {
	t.Parallel()
	service(t, func(t *testing.T, k *pglocktest.Locks, p *payouts, b *inMemory) {
		t.Helper()
		for range 2 {
			answer, err := p.Handle(t.Context(), "key-1", "a", 5)
			if err != nil || answer != "paid a" || b.of("a") != 5 {
				t.Errorf("%q, %v, %d cents", answer, err, b.of("a"))
			}
		}
		k.Crash("key-2", nil)
		if _, err := p.Handle(t.Context(), "key-2", "a", 5); !errors.Is(err, once.ErrOutcomeUnknown) || b.of("a") != 5 {
			t.Errorf("after a crash during the payment: %v, %d cents", err, b.of("a"))
		}
	})
}

// TestServicePaysInOrder of the calls.
func TestServicePaysInOrder(t *testing.T) {
	t.Parallel()
	service(t, func(t *testing.T, k *pglocktest.Locks, p *payouts, b *inMemory) {
		t.Helper()
		other := k.Busy("account:a", "another replica")
		var calls sync.WaitGroup
		for cents := 1; cents <= 3; cents++ {
			calls.Go(func() { locktest.OK(t, p.Pay(t.Context(), "a", cents)) })
			pgtest.Eventually(t, "it waits", func() bool {
				waiting := 0
				for _, e := range k.Events() {
					if e == "waits account:a" {
						waiting++
					}
				}
				return waiting == cents
			})
		}
		locktest.OK(t, other.Release(t.Context()))
		calls.Wait()
		if want := []string{"a 1", "a 2", "a 3"}; !slices.Equal(b.log, want) {
			t.Errorf("%q", b.log)
		}
	})
}
