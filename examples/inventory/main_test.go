package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/pglocktest"
	"github.com/pglock/pglock-go/pglock/rowlock"
)

var order = rowlock.Lines(rowlock.Take("apple", 1), rowlock.Take("pear", 1))

// TestNothingIsSoldTwice: five carts want the same two items, in different orders, and there are two pears.
func TestNothingIsSoldTwice(t *testing.T) {
	t.Parallel()
	s, _ := newShop(t)
	var sold, short atomic.Int32
	var buyers sync.WaitGroup
	for n := range 5 {
		lines := order
		if n%2 == 1 {
			lines = rowlock.Lines(order[1], order[0])
		}
		buyers.Go(func() {
			switch err := s.Order(t.Context(), fmt.Sprint(n), lines); {
			case err == nil:
				sold.Add(1)
			case errors.Is(err, rowlock.ErrShort):
				short.Add(1)
			default:
				t.Error(err)
			}
		})
	}
	buyers.Wait()
	if sold.Load() != 2 || short.Load() != 3 {
		t.Errorf("%d sold, %d short", sold.Load(), short.Load())
	}
	requireStock(t, s, "3 apples, 0 pears, 2 orders")
}

// TestACartIsOrderedOnce: not while another replica orders it, not by a replica that was suspended at the
// price service, and not again.
func TestACartIsOrderedOnce(t *testing.T) {
	t.Parallel()
	s, locks := newShop(t)
	other := locks.Busy("cart:7", "another replica")
	if err := s.Order(t.Context(), "7", order); !errors.Is(err, pglock.ErrNotAcquired) {
		t.Errorf("while another replica orders the cart: %v", err)
	}
	if err := other.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	price := s.price
	s.price = func(ctx context.Context, lines []rowlock.Line[string]) (int64, error) {
		l, err := pglock.Require(ctx, "cart:7")
		if err != nil {
			return 0, err
		}
		locks.Pause(l)
		return price(ctx, lines)
	}
	if err := s.Order(t.Context(), "7", order); !errors.Is(err, pglock.ErrStale) {
		t.Errorf("after a pause: %v", err)
	}
	requireStock(t, s, "5 apples, 2 pears, 0 orders")
	s.price = price
	for range 2 { // the answer to the first order may have been lost
		if err := s.Order(t.Context(), "7", order); err != nil {
			t.Error(err)
		}
	}
	requireStock(t, s, "4 apples, 1 pears, 1 orders")
}

func newShop(t *testing.T) (*shop, *pglocktest.Locks) {
	t.Helper()
	locks := pglocktest.New(t, nil)
	price := func(context.Context, []rowlock.Line[string]) (int64, error) { return 499, nil }
	return &shop{client: locks.Client, pool: newPool(t, locks, tables), price: price}, locks
}

func requireStock(t *testing.T, s *shop, want string) {
	t.Helper()
	const sql = `SELECT format('%s apples, %s pears, %s orders', sum(qty) FILTER (WHERE sku = 'apple'),
		sum(qty) FILTER (WHERE sku = 'pear'), (SELECT count(*) FROM orders)) FROM stock`
	var got string
	if err := s.pool.QueryRow(t.Context(), sql).Scan(&got); err != nil || got != want {
		t.Fatalf("%q, %v, want %q", got, err, want)
	}
}
