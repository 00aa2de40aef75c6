package once_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/once"
)

// A message that is delivered three times inserts one order, and each delivery gets its number. The
// order, the key and the number are one transaction.
func ExampleTx() {
	ctx := context.Background()
	pool, stop := locktest.ExamplePool( // creates a database
		"CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY, item text NOT NULL)")
	defer stop()
	type Order struct {
		ID   int64
		Item string
	}
	deliver := func(message, item string) (order Order, err error) {
		err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) (err error) {
			order, err = once.Tx(ctx, tx, "message:"+message, []byte(item), func(ctx context.Context) (Order, error) {
				o := Order{Item: item}
				err := tx.QueryRow(ctx, "INSERT INTO orders (item) VALUES ($1) RETURNING id", item).Scan(&o.ID)
				return o, err
			})
			return err
		})
		return order, err
	}
	for range 3 {
		order, err := deliver("17", "book")
		fmt.Println(order, err)
	}
	_, err := deliver("17", "pen")
	fmt.Println("another message under that key:", errors.Is(err, once.ErrMismatch))
	// Output:
	// {1 book} <nil>
	// {1 book} <nil>
	// {1 book} <nil>
	// another message under that key: true
}

// bank is a service outside the database.
type bank struct{ payments map[string]string }

var errTimeout = errors.New("the bank did not answer in time")

// pay pays, but the answer may be lost.
func (b *bank) pay(key string, amount int, lost bool) (string, error) {
	b.payments[key] = fmt.Sprintf("receipt for %d", amount)
	if lost {
		return "", errTimeout
	}
	return b.payments[key], nil
}

// A payment at a bank whose answer is lost. Nobody knows whether it happened, so it is not repeated
// until a call says how to find out.
func ExampleDo() {
	ctx := context.Background()
	client, stop := locktest.ExampleClient() // in a schema of its own
	defer stop()
	b := &bank{map[string]string{}}
	calls := 0
	pay := func(opts ...once.DoOption) (string, error) {
		return once.Do(ctx, client, "invoice:7", []byte("20"), func(context.Context, *pglock.Lease) (string, error) {
			calls++
			return b.pay("invoice:7", 20, true) // a time-out: it may have happened
		}, opts...)
	}
	_, err := pay()
	fmt.Println("the first call:", errors.Is(err, once.ErrOutcomeUnknown), errors.Is(err, errTimeout))
	_, err = pay()
	fmt.Println("again:", errors.Is(err, once.ErrOutcomeUnknown))

	receipt, err := pay(once.WithLookup(func(_ context.Context, _ *pglock.Lease, s once.Started) (string, error) {
		if receipt, ok := b.payments[s.Key]; ok {
			return receipt, nil
		}
		return "", once.NotDone(errors.New("the bank has no such payment"))
	}))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("asked:", receipt)
	receipt, err = pay()
	fmt.Println("from now on:", receipt, err, "/ calls:", calls)
	// Output:
	// the first call: true true
	// again: true
	// asked: receipt for 20
	// from now on: receipt for 20 <nil> / calls: 1
}
