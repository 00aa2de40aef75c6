package main

import (
	"context"
	"errors"
	"sync"

	"github.com/pglock/pglock-go/pglock/once"
)

// bank charges cards. It marks an error with once.Failed if the card is declined, and with once.NotDone if
// nothing was charged and nothing will be. After any other error, a charge may have been made.
type bank interface {
	Charge(ctx context.Context, key string, cents int64) (receipt string, err error)
	Find(ctx context.Context, key string) (receipt string, err error)
}

// demoBank stands for a bank that knows idempotency keys.
type demoBank struct {
	mu       sync.Mutex
	receipts map[string]string
}

func newDemoBank() *demoBank { return &demoBank{receipts: map[string]string{}} }

func (b *demoBank) Charge(_ context.Context, key string, cents int64) (string, error) {
	if cents > 100_000 {
		return "", once.Failed(errors.New("the card is declined"))
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.receipts[key] = "receipt for " + key
	return b.receipts[key], nil
}

func (b *demoBank) Find(_ context.Context, key string) (string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if receipt, ok := b.receipts[key]; ok {
		return receipt, nil
	}
	return "", once.NotDone(errors.New("the bank has no such charge"))
}
