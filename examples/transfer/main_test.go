package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/pglocktest"
)

// TestOppositeTransfers of two replicas do not deadlock, and a repeated one has no effect.
func TestOppositeTransfers(t *testing.T) {
	t.Parallel()
	b, locks := newBank(t)
	b.wait = time.Minute
	other := *b
	other.client = locks.Open()
	var transfers sync.WaitGroup
	for n := range 5 {
		id := fmt.Sprint(n)
		for _, call := range []func() error{
			func() error { return b.Transfer(t.Context(), transfer{"a" + id, "alice", "bob", 300}) },
			func() error { return other.Transfer(t.Context(), transfer{"b" + id, "bob", "alice", 100}) },
			func() error { return other.Transfer(t.Context(), transfer{"a" + id, "alice", "bob", 300}) },
		} {
			transfers.Go(func() {
				if err := call(); err != nil {
					t.Error(err)
				}
			})
		}
	}
	transfers.Wait()
	requireBalance(t, b, "alice", 9000)
	requireBalance(t, b, "bob", 11000)
}

// TestTransfersThatFail move nothing: a busy account, a pause during the check, and an overdraft.
func TestTransfersThatFail(t *testing.T) {
	t.Parallel()
	b, locks := newBank(t)
	seven := transfer{"7", "alice", "bob", 500}
	other := locks.Busy("account:bob", "another replica")
	if err := b.Transfer(t.Context(), seven); !errors.Is(err, pglock.ErrNotAcquired) {
		t.Errorf("while another replica has one account: %v", err)
	}
	locks.RequireFree("account:alice")
	if err := other.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.check = func(ctx context.Context, _ transfer) error {
		l, err := pglock.Require(ctx, "account:bob")
		if err == nil {
			locks.Pause(l)
		}
		return err
	}
	if err := b.Transfer(t.Context(), seven); !errors.Is(err, pglock.ErrStale) {
		t.Errorf("after a pause: %v", err)
	}
	b.check = func(context.Context, transfer) error { return nil }
	if err := b.Transfer(t.Context(), transfer{"8", "alice", "bob", 99999}); err == nil {
		t.Error("an overdraft is accepted")
	}
	requireBalance(t, b, "alice", 10000)
	if err := b.Transfer(t.Context(), seven); err != nil {
		t.Errorf("repeated after its failures: %v", err)
	}
	requireBalance(t, b, "alice", 9500)
}

func newBank(t *testing.T) (*bank, *pglocktest.Locks) {
	t.Helper()
	locks := pglocktest.New(t, nil)
	check := func(context.Context, transfer) error { return nil }
	return &bank{client: locks.Client, pool: newPool(t, locks, tables), check: check}, locks
}

func requireBalance(t *testing.T, b *bank, account string, want int64) {
	t.Helper()
	var got int64
	err := b.pool.QueryRow(t.Context(), "SELECT cents FROM balances WHERE account = $1", account).Scan(&got)
	if err != nil || got != want {
		t.Fatalf("%s has %d cents, %v, want %d", account, got, err, want)
	}
}
