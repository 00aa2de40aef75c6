package main

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/once"
	"github.com/pglock/pglock-go/pglock/pglocktest"
)

// countingBank counts the calls that reach the bank, and runs a fault before it answers one.
type countingBank struct {
	*demoBank
	calls int
	fault func() error
}

func (b *countingBank) Charge(ctx context.Context, key string, cents int64) (string, error) {
	b.calls++
	receipt, err := b.demoBank.Charge(ctx, key, cents)
	if fault := b.fault; fault != nil {
		b.fault = nil
		return receipt, fault()
	}
	return receipt, err
}

func post(client *pglock.Client, b bank, query string) (status int, body string) {
	r := httptest.NewRequest(http.MethodPost, "/charges?"+query, nil)
	r.SetBasicAuth("shop", "")
	r.Header.Set("Idempotency-Key", "1")
	w := httptest.NewRecorder()
	(&charges{client, b}).ServeHTTP(w, r)
	return w.Code, w.Body.String()
}

const receipt = "receipt for shop/1\n"

// TestARepeatedRequestGetsTheFirstAnswer, and no other request gets it.
func TestARepeatedRequestGetsTheFirstAnswer(t *testing.T) {
	t.Parallel()
	locks := pglocktest.New(t, nil)
	b := &countingBank{demoBank: newDemoBank()}
	other := locks.Busy(once.LockName("shop/1"), "another replica")
	if status, _ := post(locks.Client, b, "cents=500"); status != http.StatusConflict || b.calls != 0 {
		t.Errorf("while another replica charges: %d, %d charges", status, b.calls)
	}
	if err := other.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if status, body := post(locks.Client, b, "cents=500"); status != http.StatusOK || body != receipt || b.calls != 1 {
			t.Errorf("%d %q, %d charges", status, body, b.calls)
		}
	}
	if status, _ := post(locks.Client, b, "cents=600"); status != http.StatusUnprocessableEntity || b.calls != 1 {
		t.Errorf("another amount: %d, %d charges", status, b.calls)
	}
}

// TestAChargeWithoutAnAnswer is found at the bank by the next request: after a time-out, and after a pause of
// the replica, whose late record is refused.
func TestAChargeWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	for name, lost := range map[string]bool{"time-out": true, "pause": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			locks := pglocktest.New(t, nil)
			b := &countingBank{demoBank: newDemoBank()}
			second := locks.Open()
			b.fault = func() error {
				if lost {
					return errors.New("the answer of the bank was lost")
				}
				locks.Expire(once.LockName("shop/1"))
				if status, body := post(second, b, "cents=500"); status != http.StatusOK || body != receipt {
					t.Errorf("the replica that took over: %d %q", status, body)
				}
				return nil
			}
			want := http.StatusOK // the answer of the replica that took over
			if lost {
				want = http.StatusServiceUnavailable
			}
			if status, body := post(locks.Client, b, "cents=500"); status != want {
				t.Errorf("first: %d %q, want status %d", status, body, want)
			}
			if status, body := post(locks.Client, b, "cents=500"); status != http.StatusOK || body != receipt || b.calls != 1 {
				t.Errorf("again: %d %q, %d charges", status, body, b.calls)
			}
		})
	}
}
