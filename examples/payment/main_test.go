package main

import (
	"context"
	"errors"
	"testing"

	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/pglocktest"
)

// TestALateReceiptIsRefused: the first worker is suspended while the bank charges, and the second one takes
// over. Both send the same key, so the bank charges once.
func TestALateReceiptIsRefused(t *testing.T) {
	t.Parallel()
	locks := pglocktest.New(t, nil, pglock.WithHolder("first"))
	pool := newPool(t, locks, table+"; INSERT INTO payments VALUES (7, 500)")
	charges := map[string]int64{}
	bank := func(_ context.Context, key string, cents int64) (string, error) {
		charges[key] = cents
		return "receipt of " + key, nil
	}
	second := &worker{client: locks.Open(pglock.WithHolder("second")), pool: pool, charge: bank}
	first := &worker{client: locks.Client, pool: pool}
	first.charge = func(ctx context.Context, key string, cents int64) (string, error) {
		l, err := pglock.Require(ctx, key)
		if err != nil {
			return "", err
		}
		locks.Pause(l)
		if err := second.PayOpen(t.Context()); err != nil {
			t.Error(err)
		}
		return bank(ctx, key, cents)
	}
	if err := first.Pay(t.Context(), 7); !errors.Is(err, pglock.ErrStale) {
		t.Errorf("the late receipt: %v", err)
	}
	if got := workerOf(t, first); got != "second" || len(charges) != 1 {
		t.Errorf("recorded by %q, charges: %v", got, charges)
	}
	first.charge = nil // a payment with a receipt does not reach the bank
	if err := first.Pay(t.Context(), 7); err != nil {
		t.Error(err)
	}
}

// TestAPaymentStaysOpen while another replica has it, when the bank does not answer, and after a signal. The
// next round makes it.
func TestAPaymentStaysOpen(t *testing.T) {
	t.Parallel()
	locks := pglocktest.New(t, nil, pglock.WithHolder("first"))
	var answer error
	w := &worker{client: locks.Client, pool: newPool(t, locks, table+"; INSERT INTO payments VALUES (7, 500)")}
	w.charge = func(context.Context, string, int64) (string, error) { return "receipt", answer }
	signaled, stop := context.WithCancel(t.Context())
	stop()
	other := locks.Busy("payment:7", "another replica")
	for _, err := range []error{w.PayOpen(t.Context()), other.Release(t.Context())} {
		if err != nil {
			t.Fatal(err)
		}
	}
	answer = errors.New("the bank does not answer")
	_, _ = w.PayOpen(t.Context()), w.PayOpen(signaled)
	if got := workerOf(t, w); got != "" {
		t.Errorf("recorded by %q", got)
	}
	answer = nil
	if err := w.PayOpen(t.Context()); err != nil || workerOf(t, w) != "first" {
		t.Errorf("the next round: %v, recorded by %q", err, workerOf(t, w))
	}
}

// workerOf returns the worker that has recorded the receipt of payment 7, or nothing.
func workerOf(t *testing.T, w *worker) (name string) {
	t.Helper()
	if err := w.pool.QueryRow(t.Context(), "SELECT coalesce(worker, '') FROM payments WHERE id = 7").Scan(&name); err != nil {
		t.Fatal(err)
	}
	return name
}
