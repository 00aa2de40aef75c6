package main

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/stdlib"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/pglocktest"
)

// TestNoWithdrawalIsLost of ten that two replicas make at the same time.
func TestNoWithdrawalIsLost(t *testing.T) {
	t.Parallel()
	w, locks := newWallets(t)
	other := *w
	other.client = locks.Open()
	var withdrawals sync.WaitGroup
	for n := range 10 {
		replica := []*wallets{w, &other}[n%2]
		withdrawals.Go(func() {
			if err := replica.Withdraw(t.Context(), "alice", 100); err != nil {
				t.Error(err)
			}
		})
	}
	withdrawals.Wait()
	requireCents(t, w, 9000)
	if err := w.Withdraw(t.Context(), "alice", 9001); !errors.Is(err, errFunds) {
		t.Errorf("more than there is: %v", err)
	}
}

// TestALateWithdrawalIsRefused: the replica was suspended at the limit check, and another one has withdrawn
// since then.
func TestALateWithdrawalIsRefused(t *testing.T) {
	t.Parallel()
	w, locks := newWallets(t)
	other := *w
	other.client = locks.Open()
	w.limit = func(ctx context.Context, owner string, _ int64) error {
		l, err := pglock.Require(ctx, "wallet:"+owner)
		if err != nil {
			return err
		}
		locks.Pause(l)
		return other.Withdraw(t.Context(), owner, 100)
	}
	if err := w.Withdraw(t.Context(), "alice", 5000); !errors.Is(err, pglock.ErrStale) {
		t.Errorf("after a pause: %v", err)
	}
	requireCents(t, w, 9900)
}

func newWallets(t *testing.T) (*wallets, *pglocktest.Locks) {
	t.Helper()
	locks := pglocktest.New(t, nil)
	db := stdlib.OpenDBFromPool(newPool(t, locks, ""))
	t.Cleanup(func() { _ = db.Close() })
	orm, err := gorm.Open(postgres.New(postgres.Config{Conn: db}), &gorm.Config{Logger: logger.Discard})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(orm.AutoMigrate(&Wallet{}), orm.Create(&Wallet{"alice", 10_000}).Error); err != nil {
		t.Fatal(err)
	}
	return &wallets{locks.Client, orm, func(context.Context, string, int64) error { return nil }}, locks
}

func requireCents(t *testing.T, w *wallets, want int64) {
	t.Helper()
	var wallet Wallet
	if err := w.orm.Take(&wallet, "owner = ?", "alice").Error; err != nil || wallet.Cents != want {
		t.Fatalf("%d cents, %v, want %d", wallet.Cents, err, want)
	}
}
